"""Read folders of domain/class/image, and of domain/part/class/image, where the parts are the official split.

DomainBed has the first for all its datasets; JiGen, Dassl and FedADG have the second for VLCS, OfficeHome and digits.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ....errors import DataError
from ...storage.listing import Files, Listing, Records
from .._folder import by_class
from ..naming import Known, Names, in_usual_order, match_paths, plain, subfolders

PARTS = {"train": "train", "val": "val", "crossval": "val", "test": "test", "full": "full"}

Labelled = list[tuple[Path, int]]


def folders(root: Path, known: Known) -> Listing | None:
    """Read `domain/class/image`, in the folder or in a subfolder."""
    tops = domain_folders(root, known)
    if tops is None:
        return None
    files = {domain: by_class(top) for domain, top in tops.items()}
    known = known if known.classes else known._replace(classes=class_names(files.values()))
    domains = {domain: records(root, {"": labelled(tops[domain], files[domain], known)}) for domain in tops}
    return Listing(known.classes, domains, "folders of domain/class/image")


def part_folders(root: Path, known: Known) -> Listing | None:
    """Read `domain/part/class/image` with the parts train, val or crossval, and test.

    `full`, which repeats these, is read only if it is the only part.
    """
    tops = domain_folders(root, known)
    parts = {domain: _parts(top) for domain, top in (tops or {}).items()}
    if not parts or not all(parts.values()):
        return None
    files = {domain: {part: by_class(path) for part, path in inner.items()} for domain, inner in parts.items()}
    known = (
        known if known.classes else known._replace(classes=class_names(f for p in files.values() for f in p.values()))
    )
    domains = {
        domain: records(root, {part: labelled(path, files[domain][part], known) for part, path in inner.items()})
        for domain, inner in parts.items()
    }
    names = ", ".join(sorted({path.name for inner in parts.values() for path in inner.values()}))
    return Listing(known.classes, domains, f"folders of domain/part/class/image with the parts {names}")


def domain_folders(root: Path, known: Known) -> dict[str, Path] | None:
    """Return the folder of each domain, in the folder or one subfolder, or None if domains are missing."""
    for top in (root, *subfolders(root)):
        names = (*known.domains, *known.extra)
        matches = in_usual_order(match_paths(top, subfolders(top), names, known.aliases), known)
        if matches is not None:
            return matches
    return None


def labelled(top: Path, files: dict[str, list[Path]], known: Known) -> Labelled:
    """Return a folder's images with labels; class folders have the names of classes or their numbers: 0, 1, ..."""
    nonempty = {folder: paths for folder, paths in files.items() if paths}
    class_of = class_folders(top, nonempty, known)
    odd = [folder for folder in nonempty if folder not in class_of]
    if not class_of or (odd and not known.subset):
        present = f"folders {', '.join(odd)}" if odd else "no images"
        raise DataError(
            f"{top}: {present}; expected class/image with the classes {', '.join(known.classes)}; "
            f"rename or move the folders"
        )
    return sorted((path, known.classes.index(name)) for folder, name in class_of.items() for path in nonempty[folder])


def class_folders(top: Path, folders: Iterable[str], known: Known) -> dict[str, str]:
    """Return the class of each folder that has one."""
    folders, aliases = list(folders), known.aliases
    if all(folder.isdecimal() for folder in folders) and not set(folders) & set(known.classes):
        aliases = {name: (str(number),) for number, name in enumerate(known.classes)}
    matches = match_paths(top, [top / folder for folder in folders], known.classes, aliases)
    return {path.name: name for name, path in matches.items()}


def class_names(domains: Iterable[dict[str, list[Path]]]) -> Names:
    """Return the classes of folders, in the first spelling of each."""
    names: dict[str, str] = {}
    for files in domains:
        for folder in files:
            names.setdefault(plain(folder), folder)
    return tuple(names[key] for key in sorted(names))


def records(root: Path, parts: dict[str, Labelled]) -> Records:
    """Return images in order of class and name, with the rows of each part that has a name."""
    rows = sorted((label, path.relative_to(root).as_posix(), part) for part in parts for path, label in parts[part])
    names, labels = tuple(name for _, name, _ in rows), np.array([label for label, _, _ in rows], np.int64)
    folds = {part: np.array([i for i, row in enumerate(rows) if row[2] == part]) for part in parts if part}
    return Records(Files(root, names), labels, {} if list(folds) == ["full"] else folds)


def _parts(domain: Path) -> dict[str, Path]:
    """Return the parts of a domain if all its folders are parts; a class may have the name `train` too."""
    inner = subfolders(domain)
    if not inner or any(plain(path.name) not in PARTS or not subfolders(path) for path in inner):
        return {}
    parts = match_paths(domain, inner, ("train", "val", "test", "full"), {"val": ("crossval",)})
    return {part: path for part, path in parts.items() if part != "full" or len(parts) == 1}
