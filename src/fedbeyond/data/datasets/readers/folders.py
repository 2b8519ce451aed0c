"""Folders of domain/class/image, and of domain/part/class/image where the parts are the field's own split.

DomainBed has the first for all its datasets; JiGen, Dassl and FedADG have the second for VLCS, OfficeHome and digits.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ....errors import DataError
from ...storage.listing import Files, Listing, Records
from .._folder import by_class
from ..naming import Known, Names, matched, ordered, plain, subfolders

PARTS = {"train": "train", "val": "val", "crossval": "val", "test": "test", "full": "full"}

Labelled = list[tuple[Path, int]]


def folders(root: Path, known: Known) -> Listing | None:
    """`domain/class/image`, in the folder or in one that lies in it."""
    places = domain_folders(root, known)
    if places is None:
        return None
    files = {domain: by_class(place) for domain, place in places.items()}
    known = known if known.classes else known._replace(classes=together(files.values()))
    domains = {domain: records(root, {"": labelled(places[domain], files[domain], known)}) for domain in places}
    return Listing(known.classes, domains, "folders of domain/class/image")


def parted(root: Path, known: Known) -> Listing | None:
    """`domain/part/class/image` with the parts train, val or crossval, test; `full`, which repeats them, is not read.

    Where there is no part but `full`, that is read.
    """
    places = domain_folders(root, known)
    parts = {domain: _parts(place) for domain, place in (places or {}).items()}
    if not parts or not all(parts.values()):
        return None
    files = {domain: {part: by_class(path) for part, path in inner.items()} for domain, inner in parts.items()}
    known = known if known.classes else known._replace(classes=together(f for p in files.values() for f in p.values()))
    domains = {
        domain: records(root, {part: labelled(path, files[domain][part], known) for part, path in inner.items()})
        for domain, inner in parts.items()
    }
    names = ", ".join(sorted({path.name for inner in parts.values() for path in inner.values()}))
    return Listing(known.classes, domains, f"folders of domain/part/class/image with the parts {names}")


def domain_folders(root: Path, known: Known) -> dict[str, Path] | None:
    """The folder of each domain, if they lie together in a folder or one level further down."""
    for top in (root, *subfolders(root)):
        names = (*known.domains, *known.extra)
        places = ordered(matched(top, subfolders(top), names, known.others), known)
        if places is not None:
            return places
    return None


def labelled(place: Path, files: dict[str, list[Path]], known: Known) -> Labelled:
    """A folder's images and their labels; class folders may have the names of classes or their places: 0, 1, ..."""
    full = {folder: paths for folder, paths in files.items() if paths}
    meant = class_folders(place, full, known)
    odd = [folder for folder in full if folder not in meant]
    if not meant or (odd and not known.part):
        there = f"folders {', '.join(odd)}" if odd else "no images"
        raise DataError(f"{place}: {there}; expected class/image with the classes {', '.join(known.classes)}")
    return sorted((path, known.classes.index(name)) for folder, name in meant.items() for path in full[folder])


def class_folders(place: Path, folders: Iterable[str], known: Known) -> dict[str, str]:
    """The class that each folder is of, for those that are of any."""
    folders, others = list(folders), known.others
    if all(folder.isdecimal() for folder in folders) and not set(folders) & set(known.classes):
        others = {name: (str(number),) for number, name in enumerate(known.classes)}
    places = matched(place, [place / folder for folder in folders], known.classes, others)
    return {path.name: name for name, path in places.items()}


def together(domains: Iterable[dict[str, list[Path]]]) -> Names:
    """The classes that folders have, under the first spelling of each."""
    names: dict[str, str] = {}
    for files in domains:
        for folder in files:
            names.setdefault(plain(folder), folder)
    return tuple(names[key] for key in sorted(names))


def records(root: Path, parts: dict[str, Labelled]) -> Records:
    """Images by class and name, and the rows of each part that has a name."""
    rows = sorted((label, path.relative_to(root).as_posix(), part) for part in parts for path, label in parts[part])
    names, labels = tuple(name for _, name, _ in rows), np.array([label for label, _, _ in rows], np.int64)
    folds = {part: np.array([i for i, row in enumerate(rows) if row[2] == part]) for part in parts if part}
    return Records(Files(root, names), labels, {} if list(folds) == ["full"] else folds)


def _parts(domain: Path) -> dict[str, Path]:
    """The parts of a domain, if that is what all its folders are; a class may be called `train` too."""
    inner = subfolders(domain)
    if not inner or any(plain(path.name) not in PARTS or not subfolders(path) for path in inner):
        return {}
    found = matched(domain, inner, ("train", "val", "test", "full"), {"val": ("crossval",)})
    return {part: path for part, path in found.items() if part != "full" or len(found) == 1}
