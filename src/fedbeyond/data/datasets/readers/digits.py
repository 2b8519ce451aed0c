"""Read digits: each collection in one of several formats: idx (also .gz), .mat, .npz or folders."""

import gzip
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ....errors import DataError
from ...storage.listing import Listing, Records
from ..naming import Known, plain, subfolders
from .arrays import Part, bytes_of, join_parts, npz_records, require_labels
from .folders import folders


def digits(root: Path, known: Known) -> Listing | None:
    """Read two or more collections, each in the first format that is present; folders alone have another reader."""
    if known.classes != tuple("0123456789"):
        return None
    read: dict[str, tuple[str, Records]] = {}
    for domain in known.domains:
        for form, (ending, reader) in FORMATS.items():
            paths = _near(root, domain, known, ending)
            records = reader(paths) if paths else None
            if records is not None:
                read[domain] = form, require_labels(records, known, paths[0])
                break
        else:
            listing = folders(root, known._replace(domains=(domain,), any_two=False))
            if listing is not None:
                read[domain] = "folders", listing.domains[domain]
    collections = known.in_usual_order(read)
    if collections is None or all(form == "folders" for form, _ in collections.values()):
        return None
    layout = ", ".join(f"{domain} as {form}" for domain, (form, _) in collections.items())
    return Listing(known.classes, {domain: records for domain, (_, records) in collections.items()}, layout)


def _near(root: Path, domain: str, known: Known, ending: str) -> list[Path]:
    """Return a collection's files with an ending: in its folder or raw/ there, else by name in the root folder."""

    def files(*folders: Path) -> list[Path]:
        paths = [path for folder in folders for path in sorted(folder.iterdir()) if path.is_file()]
        return [path for path in paths if path.name.removesuffix(".gz").endswith(ending)]

    usual = known.domain_spellings()
    homes = [path for path in subfolders(root) if usual.get(plain(path.name)) == domain]
    deeper = [path for home in homes for path in subfolders(home) if plain(path.name) in ("raw", plain(home.name))]
    inside = files(*homes, *deeper)
    if inside:
        return inside
    if ending == "ubyte":  # the names of these files do not say which collection they are
        return files(root) if domain == "mnist" else []
    return [path for path in files(root) if _collection(path.stem, usual) == domain]


def _collection(stem: str, usual: dict[str, str]) -> str | None:
    """Return the collection with the longest name that a file name begins with, or None."""
    return usual.get(max(filter(plain(stem).startswith, usual), key=len, default=""))


def _npz(paths: Sequence[Path]) -> Records:
    return npz_records(paths[0])


def _idx(paths: Sequence[Path]) -> Records | None:
    """Read `train-images-idx3-ubyte` and the like."""
    files = {path.name.removesuffix(".gz").replace(".", "-"): path for path in paths}
    parts: dict[str, Part] = {}
    for part, start in {"train": "train", "test": "t10k"}.items():
        images, labels = files.get(f"{start}-images-idx3-ubyte"), files.get(f"{start}-labels-idx1-ubyte")
        if images and labels:
            parts[part] = bytes_of(idx(images), images), idx(labels).astype(np.int64)
    return join_parts(parts, paths[0]) if parts else None


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


def _mat(paths: Sequence[Path]) -> Records | None:
    """Read the .mat files of SVHN and of Digit-Five; label 10 is the digit 0."""
    parts = {part: content for path in paths for part, content in _mat_parts(path).items()}
    return join_parts({part: parts[part] for part in ("train", "test") if part in parts}, paths[0]) if parts else None


def _mat_parts(path: Path) -> dict[str, Part]:
    from scipy.io import loadmat

    try:
        content = loadmat(path)
    except (OSError, ValueError, TypeError, NotImplementedError) as error:
        raise DataError(f"{path}: cannot be read as .mat ({error}); download it again") from None
    if "X" in content:  # one part in each file, the image axis last
        part = next((part for part in ("test", "extra") if part in path.stem.lower()), "train")
        if part == "extra":
            return {}
        return {part: (bytes_of(np.moveaxis(content["X"], -1, 0), path), _numbers(content["y"]))}
    if "dataset" in content:  # USPS: [[images, labels] of training, [images, labels] of test]
        pairs = zip(("train", "test"), content["dataset"], strict=False)
        return {part: (bytes_of(images, path), _numbers(labels)) for part, (images, labels) in pairs}
    parts = {}
    for part in ("train", "test"):  # both in one file: train_32 and label_train, or train_data and train_label
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


FORMATS: dict[str, tuple[str, Callable[[Sequence[Path]], Records | None]]] = {  # the ending of files, and their reader
    "npz": (".npz", _npz),
    "idx": ("ubyte", _idx),
    "mat": (".mat", _mat),
}
