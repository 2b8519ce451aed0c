"""Images that are arrays in a file: HDF5 as PACS comes with, one .npz a domain; pixels become bytes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from ....errors import ConfigError, DataError
from ....images import Domains
from ...storage.cache import load
from ...storage.listing import Listing, Records
from ..naming import Known, matched, ordered, plain, spellings

Part = tuple[np.ndarray, np.ndarray]  # images and labels


def npz(root: str = "", size: Annotated[int, Field(gt=0)] = 32) -> Domains:
    """Any folder of one .npz a domain, with x_train y_train x_test y_test, or x y, and perhaps classes."""
    if not root:
        raise DataError("npz needs the path of the data: npz(root=/data/mine), with a file domain.npz for each domain")
    top = Path(root).expanduser()
    if not top.is_dir():
        raise DataError(f"{root}: no such folder; give a folder with a file domain.npz for each domain")
    return load(own_arrays(top), size)


def own_arrays(top: Path) -> Listing:
    """What a folder of one .npz a domain holds; the domains are called as the files."""
    paths = sorted(top.glob("*.npz"))
    if not paths:
        raise DataError(f"{top}: no .npz in it; expected a file domain.npz for each domain, with x and y")
    domains = {path.stem: joined(npz_parts(path), path) for path in paths}
    named = [names for path in paths if (names := _classes(path))]
    if any(names != named[0] for names in named):
        raise DataError(f"{top}: the files differ in their classes: {named[0]} and others; write the same into each")
    count = max(int(records.labels.max(initial=0)) for records in domains.values()) + 1
    classes = named[0] if named else tuple(str(number) for number in range(count))
    if count > len(classes):
        raise DataError(f"{top}: labels up to {count - 1}, but {len(classes)} classes: {', '.join(classes)}")
    return Listing(classes, domains, "one .npz a domain")


def npz_folder(root: Path, known: Known) -> Listing | None:
    """A known dataset as one .npz a domain."""
    found = matched(root, sorted(root.glob("*.npz")), (*known.domains, *known.extra), known.others)
    places = ordered(found, known)
    if places is None:
        return None
    domains = {domain: joined(npz_parts(path), path) for domain, path in places.items()}
    for domain, records in domains.items():
        fitting(records, known, places[domain])
    return Listing(known.classes, domains, "one .npz a domain")


def hdf5(root: Path, known: Known) -> Listing | None:
    """`<domain>_{train,val,test}.hdf5` with images and labels from 1; test is all of them and not read twice."""
    meant = spellings((*known.domains, *known.extra), known.others)
    paths: dict[str, dict[str, Path]] = {}
    for path in sorted((*root.glob("*.hdf5"), *root.glob("*.h5"), *root.glob("*/*.hdf5"))):
        spelled, _, part = path.stem.rpartition("_")
        if plain(spelled) in meant and part in ("train", "val", "test"):
            paths.setdefault(meant[plain(spelled)], {})[part] = path
    places = ordered(paths, known)
    if places is None:
        return None
    domains = {}
    for domain, parts in places.items():
        some = next(iter(parts.values()))
        read = {part: _hdf5(path) for part, path in parts.items() if part != "test" or "train" not in parts}
        records = joined(read, some)
        base = int(0 not in records.labels and len(known.classes) in records.labels)
        records = records._replace(labels=records.labels - base)
        if "test" in parts and "train" in parts:
            records = records._replace(folds={**records.folds, "test": np.arange(len(records.labels))})
        fitting(records, known, some)
        domains[domain] = records
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
        raise DataError(f"{path}: cannot be read ({error}); expected HDF5 with images and labels") from None


def npz_parts(path: Path) -> dict[str, Part]:
    """The parts that a .npz has: train and test, or one without a name."""
    content = _load(path)
    if "x" in content and "y" in content:
        return {"": (bytes_of(content["x"], path), content["y"].astype(np.int64).ravel())}
    parts = [part for part in ("train", "val", "test") if f"x_{part}" in content and f"y_{part}" in content]
    if not parts:
        has = ", ".join(content) or "nothing"
        raise DataError(f"{path}: has {has}; expected x_train y_train x_test y_test, or x y")
    return {p: (bytes_of(content[f"x_{p}"], path), content[f"y_{p}"].astype(np.int64).ravel()) for p in parts}


def _load(path: Path) -> dict[str, Any]:
    try:
        with np.load(path) as file:  # arrays of objects, which could run code, are refused
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: cannot be read as .npz ({error}); write it again with numpy.savez") from None


def _classes(path: Path) -> tuple[str, ...]:
    with np.load(path) as file:  # which was read before, with all that is in it
        return tuple(str(name) for name in file["classes"]) if "classes" in file else ()


def joined(parts: Mapping[str, Part], path: Path) -> Records:
    """Parts one after the other, with the rows of each that has a name."""
    for part, (images, labels) in parts.items():
        if len(images) != len(labels):
            raise DataError(f"{path}: {len(images)} images and {len(labels)} labels {part}; expected as many of each")
    folds, begin = {}, 0
    for part, (_, labels) in parts.items():
        folds[part] = np.arange(begin, begin + len(labels))
        begin += len(labels)
    shapes = {images.shape[1:] for images, _ in parts.values()}
    if len(shapes) > 1:
        raise DataError(f"{path}: images of the shapes {', '.join(map(str, shapes))}; expected one shape")
    images = np.concatenate([images for images, _ in parts.values()])
    labels = np.concatenate([labels for _, labels in parts.values()])
    return Records(images, labels, {} if list(folds) == [""] else folds)


def fitting(records: Records, known: Known, path: Path) -> None:
    """Refuse labels that are no class."""
    low, high = int(records.labels.min(initial=0)), int(records.labels.max(initial=0))
    if low < 0 or high >= len(known.classes):
        raise DataError(f"{path}: labels {low} to {high}; expected 0 to {len(known.classes) - 1}")


def bytes_of(images: np.ndarray, path: Path) -> np.ndarray:
    """Images as bytes, N x H x W or N x H x W x 3, from whatever order and range they have."""
    if images.ndim == 4 and images.shape[1] in (1, 3) and images.shape[3] not in (1, 3):
        images = images.transpose(0, 2, 3, 1)
    if images.ndim == 4 and images.shape[3] == 1:
        images = images[..., 0]
    if images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] != 3):
        raise DataError(f"{path}: images of the shape {images.shape}; expected N x H x W, with or without 3 colors")
    if images.dtype == np.uint8:
        return images
    top = float(images.max(initial=0))
    if not (images.min(initial=0) >= 0 and top <= 255):  # neither is true of NaN
        raise DataError(f"{path}: pixels from {images.min()} to {top:g}; expected 0 to 255, or 0 to 1")
    scale = 255.0 if np.issubdtype(images.dtype, np.floating) and top <= 1 else 1.0
    return np.round(images * scale).astype(np.uint8)
