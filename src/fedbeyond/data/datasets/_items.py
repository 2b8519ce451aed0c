"""Datasets from torch datasets of (image, label), by site: all items are read once, into memory."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..._progress import track
from ...errors import DataError
from ...images import Dataset
from ..storage.decode import DEEP
from ._own import CHANNELS, Site, assembled, described, inputs, named_sites, require_finite, shape_text
from .labels import label_of

ACCEPTED = "give torch datasets of (image, label) with a length"


def from_torch(
    sites: Mapping[str, Any],
    *,
    classes: Sequence[str] | None = None,
    groups: Mapping[str, Sequence[object]] | None = None,
    name: str = "",
    size: int | None = None,
) -> Dataset:
    """Make a dataset of torch datasets: `sites` maps the name of a site (a domain) to a dataset of (image, label).

    Images are PIL images, which become RGB bytes, or tensors (C x H x W) or arrays; floats, as of ToTensor, stay so.
    `size` resizes PIL images to a square. Items are read once, so random transforms would be applied once: leave them
    out, and use train.transform.

    Without `classes`, labels are named by the `classes` of the datasets, if all have them (ImageFolder does); sites may
    then have different classes. `groups` maps each site to the patient of each item.
    """
    require_size(size)
    datasets = named_sites(sites, "from_torch", "a torch dataset")
    for site, dataset in datasets.items():
        require_map_style(site, dataset)
    lists = {site: known_classes(dataset) for site, dataset in datasets.items()} if classes is None else {}
    by_name = bool(lists) and all(lists.values())
    read = {}
    for site, dataset in datasets.items():
        read[site] = read_site(site, len(dataset), dataset.__getitem__, size)
        if by_name:
            read[site] = read[site]._replace(labels=named_labels(site, read[site].labels, lists[site]))
    if by_name:
        classes = tuple(dict.fromkeys(name for names in lists.values() for name in names))
        classes = classes if len({frozenset(names) for names in lists.values()}) == 1 else tuple(sorted(classes))
    return assembled(read, classes, groups, name)


def require_size(size: object) -> None:
    """Raise unless a size is a positive whole number, or None."""
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
        raise DataError(f"size is {described(size)}; give the side of the square images in pixels, or leave it out")


def require_map_style(site: str, dataset: object) -> None:
    """Raise unless a dataset has a length and items by number."""
    if isinstance(dataset, torch.utils.data.DataLoader):
        raise DataError(f"site {site!r} is a DataLoader; give its dataset, as in loader.dataset")
    if isinstance(dataset, torch.utils.data.IterableDataset):
        raise DataError(f"site {site!r} is an IterableDataset, which has no length; {ACCEPTED}, or use from_arrays")
    if isinstance(dataset, Tensor | np.ndarray | str | Mapping) or not (
        hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    ):
        raise DataError(f"site {site!r} is {described(dataset)}; {ACCEPTED}")
    if not len(dataset):
        raise DataError(f"site {site!r} has no items; add data, or leave the site out")


def known_classes(dataset: object) -> tuple[str, ...]:
    """Return the names of a dataset's classes, as ImageFolder has them, also inside a Subset; empty if unknown."""
    while not hasattr(dataset, "classes") and hasattr(dataset, "dataset"):
        dataset = dataset.dataset
    names = getattr(dataset, "classes", ())
    listed = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    return tuple(names) if listed else ()


def named_labels(site: str, labels: Sequence[object], names: Sequence[str]) -> list[object]:
    """Return the name of each label; labels that are names stay."""
    named: list[object] = []
    for label in labels:
        if isinstance(label, int) and 0 <= label < len(names):
            named.append(names[label])
        elif label in names:
            named.append(label)
        else:
            raise DataError(
                f"site {site!r} has label {label!r}, and its dataset has {len(names)} classes; fix the labels or the "
                f"dataset's classes, or give classes="
            )
    return named


def read_site(site: str, count: int, item: Callable[[int], Any], size: int | None) -> Site:
    """Read all items of a site into one tensor; print progress if it takes long."""
    images: Tensor | None = None
    labels = []
    for row in track(range(count), f"reading {site}"):
        where = f"item {row} of site {site!r}"
        try:
            pair = item(row)
        except Exception as error:
            raise DataError(f"{where} cannot be read ({type(error).__name__}: {error}); fix the dataset") from error
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise DataError(f"{where} is {described(pair)}; give datasets whose items are pairs (image, label)")
        image = as_image(pair[0], size, where)
        if images is None:
            images = torch.empty((count, *image.shape), dtype=image.dtype)
        if image.shape != images.shape[1:] or image.dtype != images.dtype:
            resize = "give size= to resize all" if hasattr(pair[0], "resize") else "resize all to one shape"
            raise DataError(
                f"{where} has shape {shape_text(image)} and type {str(image.dtype)[6:]}, item 0 has "
                f"{shape_text(images[0])} and {str(images.dtype)[6:]}; {resize}"
            )
        images[row] = image
        labels.append(label_of(pair[1], f"the label of {where}"))
    assert images is not None
    require_finite(images, f"site {site!r}", missing_allowed=images.dim() == 2)
    return Site(images, labels)


def as_image(image: Any, size: int | None, where: str) -> Tensor:
    """Return an image as C x H x W: a PIL image as RGB bytes, resized to a square if `size` is given; or a row."""
    from PIL import Image

    if isinstance(image, Image.Image):
        if image.mode.startswith(DEEP):
            raise DataError(f"{where} has more than 8 bits a pixel; convert it to 8 bits, or to a tensor of floats")
        image = image.convert("RGB")
        image = image.resize((size, size), Image.Resampling.BILINEAR) if size else image
        return torch.from_numpy(np.array(image).transpose(2, 0, 1))
    if size:
        raise DataError(f"{where} is {described(image)}, and size= resizes PIL images; resize it in the dataset")
    if not isinstance(image, Tensor | np.ndarray):
        raise DataError(f"{where} has an image {described(image)}; give a PIL image, a tensor or an array")
    return inputs(image[None], array_layout(image, where), where)[0]


def array_layout(image: Tensor | np.ndarray, where: str) -> str | None:
    """Return the layout of an image: tensors have the channels first, arrays last, or first if only that fits."""
    if image.ndim != 3 or isinstance(image, Tensor):
        return "NCHW" if image.ndim == 3 else None
    if image.shape[0] not in CHANNELS and image.shape[2] not in CHANNELS:
        raise DataError(f"{where} is {described(image)}, with neither 1 nor 3 channels; give a tensor of C x H x W")
    return "NHWC" if image.shape[2] in CHANNELS else "NCHW"
