"""Digits: each collection in the form it comes in: idx (also .gz), .mat, .npz or folders, in any mixture."""

import gzip
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import DataError
from ...storage.listing import Listing, Records
from ..naming import Known, ordered, plain, spellings, subfolders
from .arrays import Part, bytes_of, fitting, joined, npz_parts
from .folders import folders, parted


def digits(root: Path, known: Known) -> Listing | None:
    """Two or more collections, each in the first of the forms that is there; folders alone are left to their reader."""
    if known.classes != tuple("0123456789"):
        return None
    found: dict[str, tuple[str, Records]] = {}
    for domain in known.domains:
        for form, reader in FORMS.items():
            records = reader(root, domain, known)
            if records is not None:
                found[domain] = form, records
                break
    there = ordered(found, known)
    if there is None or all(form == "folders" for form, _ in there.values()):
        return None
    layout = ", ".join(f"{domain} as {form}" for domain, (form, _) in there.items())
    return Listing(known.classes, {domain: records for domain, (_, records) in there.items()}, layout)


def _npz(root: Path, domain: str, known: Known) -> Records | None:
    for path in _near(root, domain, known, ".npz"):
        return _checked(npz_parts(path), known, path)
    return None


def _idx(root: Path, domain: str, known: Known) -> Records | None:
    """`train-images-idx3-ubyte` and its like, in the collection's folder; in the folder itself they are MNIST."""
    files = {path.name.removesuffix(".gz").replace(".", "-"): path for path in _near(root, domain, known, "ubyte")}
    parts: dict[str, Part] = {}
    for part, start in {"train": "train", "test": "t10k"}.items():
        images, labels = files.get(f"{start}-images-idx3-ubyte"), files.get(f"{start}-labels-idx1-ubyte")
        if images and labels:
            parts[part] = bytes_of(idx(images), images), idx(labels).astype(np.int64)
    return _checked(parts, known, next(iter(files.values()))) if parts else None


def idx(path: Path) -> np.ndarray:
    """The array of an idx file of bytes."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise DataError(f"{path}: cannot be unpacked ({error}); download it again") from None
    count = content[3] if len(content) > 3 and content[:3] == b"\0\0\x08" else 0
    shape = tuple(np.frombuffer(content, ">u4", count, 4).tolist()) if count and len(content) >= 4 + 4 * count else ()
    held = len(content) - 4 - 4 * count
    if not shape or held != math.prod(shape):
        expected = f"{math.prod(shape):,} bytes of {shape}" if shape else "the mark of idx"
        raise DataError(f"{path}: is cut off or no idx file: expected {expected}, found {held:,}; download it again")
    return np.frombuffer(content, np.uint8, offset=4 + 4 * count).reshape(shape)


def _mat(root: Path, domain: str, known: Known) -> Records | None:
    """The .mat files of SVHN and of Digit-Five; the label 10 is the digit 0."""
    parts: dict[str, Part] = {}
    paths = _near(root, domain, known, ".mat")
    for path in paths:
        content = _loaded(path)
        if "X" in content:  # one part a file, images last
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
    """Both parts in one file under names such as train_32 and label_train, or train_data and train_label."""
    parts = {}
    for part in ("train", "test"):
        images = next((content[k] for k in (f"{part}_32", f"{part}_data", part, f"{part}_28") if k in content), None)
        labels = next((content[k] for k in (f"label_{part}", f"{part}_label") if k in content), None)
        if images is not None and labels is not None:
            parts[part] = bytes_of(images, path), _numbers(labels)
    if not parts:
        has = ", ".join(name for name in content if not name.startswith("__"))
        raise DataError(f"{path}: has {has}; expected X and y, dataset, or train and label_train with test")
    return parts


def _numbers(labels: np.ndarray) -> np.ndarray:
    """Labels as numbers, from numbers or from a one in ten places; 10 is 0."""
    many = labels.ndim == 2 and labels.shape[1] == 10
    return np.where(labels == 10, 0, labels).ravel().astype(np.int64) if not many else labels.argmax(1)


def _loaded(path: Path) -> dict[str, Any]:
    from scipy.io import loadmat

    try:
        content: dict[str, Any] = loadmat(path)
    except (OSError, ValueError, TypeError, NotImplementedError) as error:
        raise DataError(f"{path}: cannot be read as .mat ({error}); download it again") from None
    return content


def _folders(root: Path, domain: str, known: Known) -> Records | None:
    one = known._replace(domains=(domain,), some=False)
    listing = parted(root, one) or folders(root, one)
    return listing.domains[domain] if listing else None


def _near(root: Path, domain: str, known: Known, ending: str) -> list[Path]:
    """A collection's files of a form: by their names in the folder, or in the collection's own folder and its raw/."""
    meant = spellings(known.domains, known.others)
    homes = [path for path in subfolders(root) if meant.get(plain(path.name)) == domain]
    deeper = [path for home in homes for path in subfolders(home) if plain(path.name) in ("raw", plain(home.name))]
    inside = [path for home in (*homes, *deeper) for path in sorted(home.iterdir()) if _ends(path, ending)]
    if inside:
        return inside
    beside = [path for path in sorted(root.iterdir()) if _ends(path, ending)]
    if ending == "ubyte":
        return beside if domain == "mnist" else []
    return [path for path in beside if _collection(path.stem, meant) == domain]


def _ends(path: Path, ending: str) -> bool:
    return path.is_file() and path.name.removesuffix(".gz").endswith(ending)


def _collection(stem: str, meant: dict[str, str]) -> str | None:
    """The collection that a file is called after: the longest name that it begins with."""
    begins = [name for name in meant if plain(stem).startswith(name)]
    return meant[max(begins, key=len)] if begins else None


def _checked(parts: dict[str, Part], known: Known, path: Path) -> Records:
    records = joined({part: parts[part] for part in sorted(parts, key=("train", "val", "test", "").index)}, path)
    fitting(records, known, path)
    return records


FORMS: dict[str, Callable[[Path, str, Known], Records | None]] = {
    "npz": _npz, "idx": _idx, "mat": _mat, "folders": _folders,
}  # fmt: skip
