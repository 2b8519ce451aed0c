"""Read digits: each collection in one of several formats: idx (also .gz), .mat, .npz or folders."""

import gzip
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import DataError
from ...storage.listing import Listing, Records
from ..naming import Known, in_usual_order, plain, spellings, subfolders
from .arrays import Part, bytes_of, join_parts, npz_parts, require_labels
from .folders import folders, part_folders


def digits(root: Path, known: Known) -> Listing | None:
    """Read two or more collections, each in the first format that is present; folders alone have another reader."""
    if known.classes != tuple("0123456789"):
        return None
    read: dict[str, tuple[str, Records]] = {}
    for domain in known.domains:
        for form, reader in FORMATS.items():
            records = reader(root, domain, known)
            if records is not None:
                read[domain] = form, records
                break
    collections = in_usual_order(read, known)
    if collections is None or all(form == "folders" for form, _ in collections.values()):
        return None
    layout = ", ".join(f"{domain} as {form}" for domain, (form, _) in collections.items())
    return Listing(known.classes, {domain: records for domain, (_, records) in collections.items()}, layout)


def _npz(root: Path, domain: str, known: Known) -> Records | None:
    for path in _near(root, domain, known, ".npz"):
        return _checked(npz_parts(path), known, path)
    return None


def _idx(root: Path, domain: str, known: Known) -> Records | None:
    """Read `train-images-idx3-ubyte` and the like from the collection's folder, or MNIST from the root folder."""
    files = {path.name.removesuffix(".gz").replace(".", "-"): path for path in _near(root, domain, known, "ubyte")}
    parts: dict[str, Part] = {}
    for part, start in {"train": "train", "test": "t10k"}.items():
        images, labels = files.get(f"{start}-images-idx3-ubyte"), files.get(f"{start}-labels-idx1-ubyte")
        if images and labels:
            parts[part] = bytes_of(idx(images), images), idx(labels).astype(np.int64)
    return _checked(parts, known, next(iter(files.values()))) if parts else None


def idx(path: Path) -> np.ndarray:
    """Read the array of an idx file of bytes."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise DataError(f"{path}: cannot be unpacked ({error}); download it again") from None
    count = content[3] if len(content) > 3 and content[:3] == b"\0\0\x08" else 0
    shape = tuple(np.frombuffer(content, ">u4", count, 4).tolist()) if count and len(content) >= 4 + 4 * count else ()
    size = len(content) - 4 - 4 * count
    if not shape or size != math.prod(shape):
        expected = f"{math.prod(shape):,} bytes of {shape}, found {size:,}" if shape else "the header of an idx file"
        raise DataError(f"{path}: truncated, or not an idx file: expected {expected}; download it again")
    return np.frombuffer(content, np.uint8, offset=4 + 4 * count).reshape(shape)


def _mat(root: Path, domain: str, known: Known) -> Records | None:
    """Read the .mat files of SVHN and of Digit-Five; label 10 is the digit 0."""
    parts: dict[str, Part] = {}
    paths = _near(root, domain, known, ".mat")
    for path in paths:
        content = _loaded(path)
        if "X" in content:  # one part in each file, the image axis last
            part = "test" if "test" in path.stem.lower() else "extra" if "extra" in path.stem.lower() else "train"
            if part != "extra":
                parts[part] = bytes_of(np.moveaxis(content["X"], -1, 0), path), _numbers(content["y"])
        elif "dataset" in content:  # USPS: [[images, labels] of training, [images, labels] of test]
            for part, (images, labels) in zip(("train", "test"), content["dataset"], strict=False):
                parts[part] = bytes_of(images, path), _numbers(labels)
        else:
            parts |= _keyed(content, path)
    return _checked(parts, known, paths[0]) if parts else None


def _keyed(content: dict[str, Any], path: Path) -> dict[str, Part]:
    """Read both parts from one file, with names such as train_32 and label_train, or train_data and train_label."""
    parts = {}
    for part in ("train", "test"):
        images = next((content[k] for k in (f"{part}_32", f"{part}_data", part, f"{part}_28") if k in content), None)
        labels = next((content[k] for k in (f"label_{part}", f"{part}_label") if k in content), None)
        if images is not None and labels is not None:
            parts[part] = bytes_of(images, path), _numbers(labels)
    if not parts:
        has = ", ".join(name for name in content if not name.startswith("__"))
        raise DataError(f"{path}: has {has}; expected X and y, dataset, or train, label_train, test and label_test")
    return parts


def _numbers(labels: np.ndarray) -> np.ndarray:
    """Convert numbers or one-hot vectors to labels; 10 is 0."""
    one_hot = labels.ndim == 2 and labels.shape[1] == 10
    return np.where(labels == 10, 0, labels).ravel().astype(np.int64) if not one_hot else labels.argmax(1)


def _loaded(path: Path) -> dict[str, Any]:
    from scipy.io import loadmat

    try:
        content: dict[str, Any] = loadmat(path)
    except (OSError, ValueError, TypeError, NotImplementedError) as error:
        raise DataError(f"{path}: cannot be read as .mat ({error}); download it again") from None
    return content


def _folders(root: Path, domain: str, known: Known) -> Records | None:
    single = known._replace(domains=(domain,), any_two=False)
    listing = part_folders(root, single) or folders(root, single)
    return listing.domains[domain] if listing else None


def _near(root: Path, domain: str, known: Known, ending: str) -> list[Path]:
    """Return a collection's files with an ending: in its folder or raw/ there, else by name in the root folder."""
    usual = spellings(known.domains, known.aliases)
    homes = [path for path in subfolders(root) if usual.get(plain(path.name)) == domain]
    deeper = [path for home in homes for path in subfolders(home) if plain(path.name) in ("raw", plain(home.name))]
    inside = [path for home in (*homes, *deeper) for path in sorted(home.iterdir()) if _ends(path, ending)]
    if inside:
        return inside
    beside = [path for path in sorted(root.iterdir()) if _ends(path, ending)]
    if ending == "ubyte":
        return beside if domain == "mnist" else []
    return [path for path in beside if _collection(path.stem, usual) == domain]


def _ends(path: Path, ending: str) -> bool:
    return path.is_file() and path.name.removesuffix(".gz").endswith(ending)


def _collection(stem: str, usual: dict[str, str]) -> str | None:
    """Return the collection with the longest name that a file name begins with, or None."""
    prefixes = [name for name in usual if plain(stem).startswith(name)]
    return usual[max(prefixes, key=len)] if prefixes else None


def _checked(parts: dict[str, Part], known: Known, path: Path) -> Records:
    records = join_parts({part: parts[part] for part in sorted(parts, key=("train", "val", "test", "").index)}, path)
    require_labels(records, known, path)
    return records


FORMATS: dict[str, Callable[[Path, str, Known], Records | None]] = {
    "npz": _npz, "idx": _idx, "mat": _mat, "folders": _folders,
}  # fmt: skip
