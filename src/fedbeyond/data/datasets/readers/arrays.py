"""Read images from arrays in files: the HDF5 files of PACS, or one .npz for each domain; pixels become bytes."""

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import numpy as np

from ....errors import ConfigError, DataError
from ....images import Dataset
from ...storage.cache import Size, load
from ...storage.listing import Listing, Records
from ..grouping import group_names
from ..naming import Known, match_paths, plain

Part = tuple[np.ndarray, np.ndarray]  # images and labels


def npz(
    root: Annotated[str, "the folder with a file domain.npz for each domain"] = "",
    size: Size = 32,
    groups: Annotated[str, "array with the patient of each image, for train.disjoint"] = "",
) -> Dataset:
    """Read any folder with one .npz for each domain: x_train y_train x_test y_test, or x y, and optionally classes."""
    if not root:
        raise DataError("npz needs a path: give npz(root=/data/mine), with a file domain.npz for each domain")
    top = Path(root).expanduser()
    if not top.is_dir():
        raise DataError(f"{root}: no such folder; give a folder with a file domain.npz for each domain")
    return load(list_arrays(top, groups), size)


def list_arrays(top: Path, groups: str = "") -> Listing:
    """Return the listing of a folder with one .npz for each domain, or of one such file; names of files are domains."""
    paths = [top] if top.is_file() else sorted(top.glob("*.npz"))
    if not paths:
        raise DataError(f"{top}: no .npz in it; expected a file domain.npz for each domain, with x and y")
    domains = {path.stem: npz_records(path, groups) for path in paths}
    for path, records in zip(paths, domains.values(), strict=True):
        if records.labels.min(initial=0) < 0:
            raise DataError(f"{path}: a label is {records.labels.min()}; expected labels from 0; fix the labels")
    named = [names for path in paths if (names := _classes(path))]
    if any(names != named[0] for names in named):
        raise DataError(
            f"{top}: the files differ in their classes: {named[0]} and others; write the same classes into each"
        )
    count = max(int(records.labels.max(initial=0)) for records in domains.values()) + 1
    classes = named[0] if named else tuple(str(number) for number in range(count))
    if count > len(classes):
        raise DataError(
            f"{top}: labels up to {count - 1}, but {len(classes)} classes: {', '.join(classes)}; "
            f"fix the labels, or write all class names into classes"
        )
    return Listing(classes, domains, "one .npz for each domain")


def npz_folder(root: Path, known: Known) -> Listing | None:
    """Read a known dataset with one .npz for each domain."""
    files = known.in_usual_order(match_paths(root, sorted(root.glob("*.npz")), known.domain_spellings()))
    if files is None:
        return None
    domains = {domain: require_labels(npz_records(path), known, path) for domain, path in files.items()}
    return Listing(known.classes, domains, "one .npz for each domain")


def hdf5(root: Path, known: Known) -> Listing | None:
    """Read `<domain>_{train,val,test}.hdf5` with images and labels from 1; test repeats all images and is not read."""
    usual = known.domain_spellings()
    paths: dict[str, dict[str, Path]] = {}
    for path in sorted((*root.glob("*.hdf5"), *root.glob("*.h5"), *root.glob("*/*.hdf5"))):
        spelled, _, part = path.stem.rpartition("_")
        if plain(spelled) in usual and part in ("train", "val", "test"):
            paths.setdefault(usual[plain(spelled)], {})[part] = path
    files = known.in_usual_order(paths)
    if files is None:
        return None
    domains = {}
    for domain, parts in files.items():
        first = next(iter(parts.values()))
        read = {part: _hdf5(path) for part, path in parts.items() if part != "test" or "train" not in parts}
        records = join_parts(read, first)
        base = int(0 not in records.labels and len(known.classes) in records.labels)
        records = records._replace(labels=records.labels - base)
        if "test" in parts and "train" in parts:
            records = records._replace(folds={**records.folds, "test": np.arange(len(records.labels))})
        domains[domain] = require_labels(records, known, first)
    return Listing(known.classes, domains, "HDF5 files <domain>_<part>.hdf5 with images and labels")


def _hdf5(path: Path) -> Part:
    try:
        import h5py
    except ImportError:
        raise ConfigError(f"{path}: reading HDF5 needs h5py; install it with: pip install 'fedbeyond[data]'") from None
    try:
        with h5py.File(path, "r") as file:
            return bytes_of(np.asarray(file["images"]), path), np.asarray(file["labels"]).astype(np.int64).ravel()
    except (OSError, KeyError) as error:
        raise DataError(
            f"{path}: cannot be read ({error}); expected HDF5 with images and labels; download it again"
        ) from None


def npz_records(path: Path, groups: str = "") -> Records:
    """Read a .npz file with the parts train, val and test, or with one part without a name; `groups` is an array."""
    try:
        with open(path, "rb") as opened, np.load(opened) as file:  # raises for arrays of objects, which could run code
            content = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path}: cannot be read as .npz ({error}); write it again with numpy.savez") from None
    except TypeError:  # numpy.load returned an array
        raise DataError(f"{path}: a single array; expected images and labels; write both with numpy.savez") from None
    endings = [""] if "x" in content and "y" in content else ["_train", "_val", "_test"]
    parts = {
        ending[1:]: (bytes_of(content[f"x{ending}"], path), labels_of(content[f"y{ending}"], path))
        for ending in endings
        if f"x{ending}" in content and f"y{ending}" in content
    }
    if not parts:
        has = ", ".join(content) or "nothing"
        raise DataError(
            f"{path}: has {has}; expected x_train y_train x_test y_test, or x y; write these with numpy.savez"
        )
    records = join_parts(parts, path)
    if not groups:
        return records
    wanted = [f"{groups}_{part}" if part else groups for part in parts]
    if missing := [name for name in wanted if name not in content]:
        raise DataError(
            f"{path}: no array {missing[0]!r} for groups={groups}; it has {', '.join(content)}; give one of these"
        )
    each = [
        group_names(content[name], len(labels), f"{path}, {name}")
        for name, (_, labels) in zip(wanted, parts.values(), strict=True)
    ]
    return records._replace(groups=tuple(name for names in each for name in names))


def labels_of(labels: np.ndarray, path: Path) -> np.ndarray:
    """Convert labels to integers; raise if they are not whole numbers."""
    flat = labels.ravel()
    odd = flat[:1] if labels.dtype.kind not in "iubf" else flat[~(flat == np.round(flat))]  # NaN is not equal to itself
    if len(odd):
        raise DataError(
            f"{path}: a label is {odd[0].item()!r}; expected numbers from 0, and their names in classes; fix the labels"
        )
    return labels.astype(np.int64).ravel()


def _classes(path: Path) -> tuple[str, ...]:
    with np.load(path) as file:  # all its arrays were read before without error
        return tuple(str(name) for name in file["classes"]) if "classes" in file else ()


def join_parts(parts: Mapping[str, Part], path: Path) -> Records:
    """Join parts in order, with the rows of each part that has a name."""
    for part, (images, labels) in parts.items():
        if len(images) != len(labels):
            where = f" in {part}" if part else ""
            raise DataError(
                f"{path}: {len(images)} images and {len(labels)} labels{where}; expected equal numbers; write it again"
            )
    shapes = {images.shape[1:] for images, _ in parts.values()}
    if len(shapes) > 1:
        raise DataError(f"{path}: images of shapes {', '.join(map(str, shapes))}; resize them to one shape")
    images = np.concatenate([images for images, _ in parts.values()])
    labels = np.concatenate([labels for _, labels in parts.values()])
    starts = np.cumsum([len(images) for images, _ in parts.values()])[:-1]
    folds = dict(zip(parts, np.split(np.arange(len(labels)), starts), strict=True))
    return Records(images, labels, {} if "" in parts else folds)


def require_labels(records: Records, known: Known, path: Path) -> Records:
    """Return the records; raise if a label is not the number of a class."""
    low, high = int(records.labels.min(initial=0)), int(records.labels.max(initial=0))
    if low < 0 or high >= len(known.classes):
        raise DataError(f"{path}: labels {low} to {high}; expected 0 to {len(known.classes) - 1}; fix the labels")
    return records


def bytes_of(images: np.ndarray, path: Path) -> np.ndarray:
    """Convert images of any axis order and range to bytes, N x H x W or N x H x W x 3."""
    if images.ndim == 4 and images.shape[1] in (1, 3) and images.shape[3] not in (1, 3):
        images = images.transpose(0, 2, 3, 1)
    if images.ndim == 4 and images.shape[3] == 1:
        images = images[..., 0]
    if images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] != 3):
        raise DataError(f"{path}: images of shape {images.shape}; expected N x H x W, with or without 3 channels")
    if images.dtype == np.uint8:
        return images
    top = float(images.max(initial=0))
    if not (images.min(initial=0) >= 0 and top <= 255):  # also raises for NaN
        raise DataError(f"{path}: pixels from {images.min()} to {top:g}; rescale them to 0 to 255, or 0 to 1")
    scale = 255.0 if np.issubdtype(images.dtype, np.floating) and top <= 1 else 1.0
    return np.round(images * scale).astype(np.uint8)
