"""Read folders of domain/class/image, and of domain/part/class/image, where the parts are the official split.

DomainBed has the first for all its datasets; JiGen, Dassl and FedADG have the second for VLCS, OfficeHome and digits.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from ....errors import DataError
from ...storage.listing import Listing, sorted_records
from .._folder import by_class
from ..naming import Known, class_names, match_paths, plain, spellings, subfolders

PARTS = {"train": "train", "val": "val", "crossval": "val", "test": "test", "full": "full"}


def folders(root: Path, known: Known) -> Listing | None:
    """Read `domain/class/image`, or `domain/part/class/image` with the parts train, val or crossval, and test.

    Domains are in the folder or in a subfolder. `full`, which repeats the parts, is read only if it is the only one.
    """
    tops = domain_folders(root, known)
    if tops is None:
        return None
    parts, layout = {domain: _parts(top) for domain, top in tops.items()}, "folders of domain/class/image"
    if all(parts.values()):
        names = ", ".join(sorted({path.name for inner in parts.values() for path in inner.values()}))
        layout = f"folders of domain/part/class/image with the parts {names}"
    else:
        parts = {domain: {"": top} for domain, top in tops.items()}
    files = {path: by_class(path) for inner in parts.values() for path in inner.values()}
    if not known.classes:
        known = known._replace(classes=class_names(folder for by_name in files.values() for folder in by_name))
    domains = {}
    for domain, inner in parts.items():
        rows = [
            (label, image.relative_to(root).as_posix(), part, "")
            for part, path in inner.items()
            for image, label in labelled(path, files[path], known)
        ]
        domains[domain] = sorted_records(root, rows, [part for part in inner if part not in ("", "full")])
    return Listing(known.classes, domains, layout)


def domain_folders(root: Path, known: Known) -> dict[str, Path] | None:
    """Return the folder of each domain, in the folder or one subfolder, or None if domains are missing."""
    for top in (root, *subfolders(root)):
        matches = known.in_usual_order(match_paths(top, subfolders(top), known.domain_spellings()))
        if matches is not None:
            return matches
    return None


def labelled(top: Path, files: dict[str, list[Path]], known: Known) -> Iterator[tuple[Path, int]]:
    """Yield a folder's images with labels; class folders have the names of classes or their numbers: 0, 1, ..."""
    nonempty = {folder: paths for folder, paths in files.items() if paths}
    class_of = class_folders(top, nonempty, known)
    odd = [folder for folder in nonempty if folder not in class_of]
    if not class_of or (odd and not known.subset):
        present = f"folders {', '.join(odd)}" if odd else "no images"
        raise DataError(
            f"{top}: {present}; expected class/image with the classes {', '.join(known.classes)}; "
            f"rename or move the folders"
        )
    for folder, name in class_of.items():
        yield from ((path, known.classes.index(name)) for path in nonempty[folder])


def class_folders(top: Path, folders: Iterable[str], known: Known) -> dict[str, str]:
    """Return the class of each folder that has one."""
    folders, aliases = list(folders), known.aliases
    if all(folder.isdecimal() for folder in folders) and not set(folders) & set(known.classes):
        aliases = {name: (str(number),) for number, name in enumerate(known.classes)}
    matches = match_paths(top, [top / folder for folder in folders], spellings(known.classes, aliases))
    return {path.name: name for name, path in matches.items()}


def _parts(domain: Path) -> dict[str, Path]:
    """Return the parts of a domain if all its folders are parts; a class may have the name `train` too."""
    inner = subfolders(domain)
    if not inner or any(plain(path.name) not in PARTS or not subfolders(path) for path in inner):
        return {}
    parts = match_paths(domain, inner, PARTS)
    return {part: path for part, path in parts.items() if part != "full" or len(parts) == 1}
