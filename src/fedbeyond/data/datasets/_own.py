"""Datasets from arrays and tensors of a Python program, by site.

Arrays are used as they are, memory maps too, and are not copied if their type allows it: do not change them later.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...errors import DataError
from ...images import Dataset, Notes, mapped, tensor_digest
from ._table import Rows, complete
from .columns import Column
from .grouping import group_names
from .labels import encode_labels, listed_labels

Layout = Literal["NHW", "NHWC", "NCHW"]
LAYOUTS = {"NHW": 3, "NHWC": 4, "NCHW": 4}  # the number of axes of each
CHANNELS = (1, 3)
ACCEPTED = (
    "images as bytes or floats (N x H x W, N x H x W x C or N x C x H x W), or rows of numbers (N x F), in a numpy "
    "array, a torch tensor or nested lists"
)
NOT_FINITE = "replace these values, or leave the images out"


class Site(NamedTuple):
    """The inputs and labels of one site, and the parts of its official split, if it has one."""

    x: Tensor
    labels: Sequence[object]
    folds: Mapping[str, np.ndarray] = {}


def from_arrays(
    sites: Mapping[str, tuple[Any, Any]],
    *,
    classes: Sequence[str] | None = None,
    groups: Mapping[str, Sequence[object]] | None = None,
    name: str = "",
    layout: Layout | None = None,
    standardise: bool = True,
) -> Dataset:
    """Make a dataset of arrays: `sites` maps the name of a site (a domain) to its inputs and labels, `(x, y)`.

    x holds images as bytes, images as floats, which networks take as they are (bytes become -1..1), or rows of
    numbers. `layout` says where the channels are if the shape does not: NHW, NHWC or NCHW. Rows are standardised at
    each site, and missing values (NaN) filled in, as those of tables, unless `standardise` is false.

    y holds whole numbers, texts or booleans. `classes` names the classes, in the order of whole numbers from 0; without
    it the classes are the sorted labels of all sites. `groups` maps each site to the patient of each row, for
    train.disjoint = "groups".
    """
    if layout is not None and layout not in LAYOUTS:
        raise DataError(f"layout={layout!r} is not known; give one of {', '.join(LAYOUTS)}, or leave it out")
    read = {}
    for site, pair in named_sites(sites, "from_arrays", "a pair (x, y)").items():
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise DataError(f"site {site!r} is {described(pair)}; give a pair (x, y) of inputs and labels{hint(pair)}")
        where = f"x of site {site!r}"
        x, labels = inputs(pair[0], layout, where), listed_labels(pair[1], f"y of site {site!r}")
        if len(x) != len(labels):
            raise DataError(
                f"site {site!r} has {len(x)} inputs in x and {len(labels)} labels in y; give one label for each input"
            )
        require_finite(x, where, missing_allowed=standardise and x.dim() == 2)
        read[site] = Site(x, labels)
    return assembled(read, classes, groups, name, standardise)


def named_sites(sites: object, function: str, value: str) -> dict[str, Any]:
    """Return what is given for each site; raise unless there are two sites or more with acceptable names."""
    if not isinstance(sites, Mapping):
        raise DataError(
            f"sites is {described(sites)}; give {function} a dict from the name of each site to {value}{hint(sites)}"
        )
    if len(sites) < 2:
        has = f"one site, {next(iter(sites))!r}" if sites else "no site"
        raise DataError(f"sites has {has}; give two or more: one to leave out as unseen, the others to train on")
    for site in sites:
        require_site_name(site)
    return dict(sites)


def require_site_name(site: object) -> None:
    """Raise if a site cannot have this name, which is part of file names and of targets such as a+b."""
    if not isinstance(site, str) or not site.strip() or "/" in site or "+" in site:
        raise DataError(f"site name {described(site)} is not accepted; give a text without / and +, and not empty")


def assembled(
    sites: Mapping[str, Site], classes: Sequence[str] | None, groups: object, name: str, standardise: bool = True
) -> Dataset:
    """Make a dataset of sites that were read: encode labels, and check what sites must have in common."""
    if not isinstance(name, str):
        raise DataError(f"name is {described(name)}; give a text")
    require_equal_shapes({site: held.x for site, held in sites.items()})
    names, encoded = encode_labels({site: held.labels for site, held in sites.items()}, classes)
    patients = site_groups(groups, encoded)
    images = {site: (held.x, encoded[site]) for site, held in sites.items()}
    notes = {site: Notes((), held.folds, patients.get(site, ()), tensor_digest(held.x)) for site, held in sites.items()}
    features = next(iter(images.values()))[0].shape[1:]
    if len(features) > 1:
        return Dataset(names, images, notes, name=name)
    columns = [Column(f"x{number}") for number in range(features[0])]
    if standardise:
        return Dataset(names, images, notes, partial(complete, (0,) * len(columns)), columns, name=name)
    return Dataset(names, images, notes, unchanged, name=name)


def unchanged(split: Rows, train: Rows) -> Rows:
    """Return rows that are not to be standardised."""
    return split


def site_groups(groups: object, labels: Mapping[str, Tensor]) -> dict[str, tuple[str, ...]]:
    """Return the group of each row of each site; empty without groups."""
    if groups is None:
        return {}
    if not isinstance(groups, Mapping):
        raise DataError(f"groups is {described(groups)}; give a dict from the name of each site to its groups")
    if odd := [str(site) for site in groups if site not in labels] + [site for site in labels if site not in groups]:
        raise DataError(
            f"groups and sites have different names: only one of them has {odd[0]!r}; give the groups of every site"
        )
    return {site: group_names(groups[site], len(y), f"groups[{site!r}]") for site, y in labels.items()}


def inputs(x: object, layout: str | None, where: str) -> Tensor:
    """Return images as N x C x H x W, or rows as N x F, of bytes or 32-bit floats; raise unless x holds such."""
    tensor = as_tensor(x, where)
    if tensor.dim() not in (2, 3, 4) or (layout and tensor.dim() != LAYOUTS[layout]):
        wanted = f"layout={layout!r} needs {LAYOUTS[layout]} axes" if layout else f"give {ACCEPTED}"
        raise DataError(f"{where} has shape {shape_text(tensor)}; {wanted}")
    if not tensor.numel():
        raise DataError(f"{where} is empty, of shape {shape_text(tensor)}; add data, or leave the site out")
    if tensor.dim() == 2:
        return tensor.float()
    if tensor.dim() == 3:
        tensor = tensor[:, None]
    elif (layout or find_layout(tensor, where)) == "NHWC":
        tensor = tensor.movedim(3, 1)
    return tensor if tensor.dtype == torch.float32 else as_bytes(tensor, where)


def as_tensor(x: object, where: str) -> Tensor:
    """Return numbers as a tensor, without a copy if possible; floats of any width become 32-bit floats."""
    if isinstance(x, Tensor):
        if x.layout != torch.strided or x.is_complex() or x.is_quantized:
            raise DataError(f"{where} is {described(x)}; give {ACCEPTED}")
        x = x.detach().cpu()
        if x.is_floating_point():
            return x.float()
        return x if x.dtype in (torch.uint8, torch.bool) else x.long()
    if isinstance(x, np.ma.MaskedArray) or not (hasattr(x, "__array__") or isinstance(x, list | tuple)):
        raise DataError(f"{where} is {described(x)}; give {ACCEPTED}{hint(x)}")
    try:
        array = np.asarray(x)
    except ValueError:
        raise DataError(f"{where} is nested lists of different lengths; give all rows or images one shape") from None
    if array.dtype.kind not in "uifb":
        raise DataError(f"{where} is {described(array)}; give {ACCEPTED}{hint(x)}")
    if array.dtype.kind == "f":
        array = array.astype(np.float32, copy=False)
    elif array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)  # torch has few operations for wider unsigned numbers
    if not array.dtype.isnative or any(stride < 0 for stride in array.strides):
        array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    return mapped(array)


def find_layout(images: Tensor, where: str) -> str:
    """Return the layout of images with four axes: the axis of size 1 or 3 holds the channels."""
    first, last = images.shape[1] in CHANNELS, images.shape[3] in CHANNELS
    if first == last:
        problem = "either axis could hold the channels" if first else "no axis of size 1 or 3 holds the channels"
        raise DataError(
            f"{where} has shape {shape_text(images)}, and {problem}; say which does: layout='NCHW' or layout='NHWC'"
        )
    return "NCHW" if first else "NHWC"


def as_bytes(images: Tensor, where: str) -> Tensor:
    """Return images of whole numbers from 0 to 255 as bytes."""
    if images.dtype == torch.uint8:
        return images
    if images.dtype == torch.bool or int(images.min()) < 0 or int(images.max()) > 255:
        values = "true and false" if images.dtype == torch.bool else f"from {int(images.min())} to {int(images.max())}"
        raise DataError(f"{where} has pixels {values}; give bytes from 0 to 255, or floats")
    return images.to(torch.uint8)


def require_finite(x: Tensor, where: str, missing_allowed: bool) -> None:
    """Raise if floats are infinite, or not numbers where no missing value is allowed."""
    if not x.is_floating_point():
        return
    for start in range(0, len(x), 256):
        some = x[start : start + 256]
        wrong = some.isinf() if missing_allowed else ~some.isfinite()
        if bool(wrong.any()):
            row = start + int(wrong.flatten(1).any(1).nonzero()[0])
            value = "infinite numbers" if missing_allowed else "NaN or infinite numbers"
            way = NOT_FINITE if x.dim() > 2 else "replace them" + ("" if missing_allowed else ", or standardise=True")
            raise DataError(f"{where} has {value}, the first in row {row}; {way}")


def require_equal_shapes(inputs: Mapping[str, Tensor]) -> None:
    """Raise if inputs of sites differ in shape, or if some are bytes and others floats."""
    kinds = {site: f"{shape_text(x[0])} of {str(x.dtype)[6:]}" for site, x in inputs.items()}
    first, *others = kinds
    for site in others:
        if kinds[site] != kinds[first]:
            raise DataError(
                f"inputs are {kinds[first]} at site {first!r} and {kinds[site]} at site {site!r}; give all sites one "
                f"shape and type"
            )


def shape_text(x: Tensor) -> str:
    """Return a shape as in 8 x 3 x 32 x 32."""
    return " x ".join(map(str, x.shape)) or "()"


def described(value: object) -> str:
    """Return what a value is, in a few words: never the contents of an array."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        masked = isinstance(value, np.ma.MaskedArray)
        kind = "a tensor" if isinstance(value, Tensor) else "a masked array" if masked else "an array"
        axes = " x ".join(map(str, value.shape)) or "()"
        return f"{kind} of {str(value.dtype).removeprefix('torch.')} and shape {axes}"
    short = isinstance(value, str | bytes | int | float | None) and len(repr(value)) <= 60
    return repr(value) if short else f"of type {type(value).__name__}"


def hint(value: object) -> str:
    """Return which function takes an object of this kind; empty if none does."""
    if hasattr(value, "isna") and hasattr(value, "columns"):
        return " (from_pandas takes a DataFrame)"
    if hasattr(value, "features") and hasattr(value, "with_format"):
        return " (from_huggingface takes a datasets.Dataset)"
    return " (from_torch takes torch datasets)" if isinstance(value, torch.utils.data.Dataset) else ""
