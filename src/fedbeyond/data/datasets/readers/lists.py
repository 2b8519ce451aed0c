"""Read lists of files: a line has a path and a number, and a text file is one part of one domain.

PACS has them in several forms (the original and GA, Dassl, JiGen), also VLCS, OfficeHome (GA), DomainNet and GDRBench.
Numbers begin with 0 or 1, and paths are often those of another computer; the class folder in a path decides the label.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ....errors import DataError, MissingError
from ...storage.listing import Files, Listing, Records
from ..naming import Known, class_names, plain, spellings, subfolders
from .folders import PARTS

NAMED = re.compile(r"(?P<domain>.+)_(?P<part>train|crossval|val|test|img_label_list)(_kfold)?\.txt", re.IGNORECASE)
WHERE = {"splits", "txtlists", "lists", "data", "rawimages", "trainvalsplitsandh5pyfilespreread"}
IMAGES = ("", "images", "raw_images", "kfold")
LEFT_OUT = "sketch/dog/n02103406_4068-1.png"  # Dassl: "this image has problems"; it was corrupt in early copies
MAX_TRIED, MAX_NAMED = 50, 3

Entry = tuple[str, int]


class Listed(NamedTuple):
    """A list of files: its domain and part, its lines, and the number of the first class."""

    path: Path
    domain: str
    part: str  # train, val, test, or empty: the whole domain
    entries: list[Entry]
    base: int


def lists(root: Path, known: Known) -> Listing | None:
    """Read lists `<domain>_<part>.txt` (also `_kfold`) or `<domain>_img_label_list.txt`, and the images they name."""
    files = find_lists(root, known)
    by_domain = known.in_usual_order(
        {each.domain: [other for other in files if other.domain == each.domain] for each in files}
    )
    if by_domain is None:
        return None
    classes = known.classes or class_names(_folder_name(name) for each in files for name, _ in each.entries)
    known, domains, bases = known._replace(classes=classes), {}, set()
    for domain, parts in by_domain.items():
        domains[domain], part_bases = _records(root, parts, known)
        bases |= part_bases
    folder, images = files[0].path.parent, ", ".join(sorted(_within(root, base) for base in bases))
    layout = f"lists of files in {_within(root, folder)}, images in {images}"
    if any(each.base for each in files):
        layout += ", labels from 1"
    if _dassl(root, folder, bases) and any(name.endswith(LEFT_OUT) for each in files for name, _ in each.entries):
        layout += f", without {LEFT_OUT} as in Dassl"
    return Listing(classes, domains, layout)


def find_lists(root: Path, known: Known) -> list[Listed]:
    """Return the lists of known domains in a folder and, up to two levels down, in its usual folders of lists."""
    usual = known.domain_spellings()
    likely = [path for path in subfolders(root) if plain(path.name) in WHERE]
    deeper = [path for top in likely for path in subfolders(top) if plain(path.name) in WHERE]
    files: dict[tuple[str, str], Listed] = {}
    for path in (path for folder in (root, *likely, *deeper) for path in sorted(folder.glob("*.txt"))):
        name = NAMED.fullmatch(path.name)
        domain = usual.get(plain(name["domain"])) if name else None
        if name and domain:
            part = PARTS.get(name["part"].lower(), "")
            if (domain, part) not in files:
                files[domain, part] = Listed(path, domain, part, _entries(path), 0)
    numbers = [number for each in files.values() for _, number in each.entries]
    return [each._replace(base=_base(each, numbers, known)) for each in files.values()]


def _entries(path: Path) -> list[Entry]:
    """Read the lines of a list; the last blank separates the path, which may have blanks, from the number."""
    entries = []
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        if line.strip():
            name, _, label = line.strip().rpartition(" ")
            if not name or not label.isdecimal():
                raise DataError(
                    f"{path}, line {number}: {line.strip()[:80]!r}; expected a path, a blank and a number; fix it"
                )
            entries.append((name.strip().replace("\\", "/"), int(label)))
    return entries


def _labels(known: Known) -> dict[str, int]:
    """Map the plain name of a class folder, or the number of a class, to a label."""
    numbers = {name: number for number, name in enumerate(known.classes)}
    named = {spelled: numbers[name] for spelled, name in spellings(known.classes, known.aliases).items()}
    return {str(number): number for number in range(len(known.classes))} | named


def _folder_name(name: str) -> str:
    """Return the name of the folder of a listed image."""
    return name.rpartition("/")[0].rpartition("/")[2]


def _base(listed: Listed, numbers: Sequence[int], known: Known) -> int:
    """Return the number of the first class in a list; raise if numbers contradict the class folders in the paths."""
    labels = _labels(known)
    classified = [(name, number, labels.get(plain(_folder_name(name)))) for name, number in listed.entries]
    certain = [(name, number, label) for name, number, label in classified if label is not None]
    if not known.classes or known.subset or not listed.part:  # the numbers may be those of other classes
        all_classes = bool(certain) and len({label for _, _, label in certain}) == len(known.classes)
        return int(all_classes and all(number == label + 1 for _, number, label in certain))
    if not certain:
        if max(numbers, default=0) > len(known.classes) or (0 in numbers and len(known.classes) in numbers):
            raise DataError(
                f"{listed.path}: labels {min(numbers)} to {max(numbers)}; expected 0 to {len(known.classes) - 1} "
                f"or 1 to {len(known.classes)}: {', '.join(known.classes)}; fix the list"
            )
        return int(0 not in numbers and len(known.classes) in numbers)
    base = int(Counter(number - label for _, number, label in certain)[1] > len(certain) / 2)
    wrong = [(name, number, label) for name, number, label in certain if number - base != label]
    if wrong:
        examples = "; ".join(
            f"{name} is {number}, expected {label + base} ({known.classes[label]})"
            for name, number, label in wrong[:MAX_NAMED]
        )
        more = f"; and {len(wrong) - MAX_NAMED} more" if len(wrong) > MAX_NAMED else ""
        raise DataError(f"{listed.path}: labels contradict the folders of the images: {examples}{more}; fix the list")
    return base


def _records(root: Path, parts: Sequence[Listed], known: Known) -> tuple[Records, set[Path]]:
    """Return a domain's images in order of class and name, with the rows of each part, and their base folders."""
    labels: dict[str, int] = {}
    rows: dict[str, set[str]] = {}
    bases, by_folder = set(), _labels(known)
    for each in parts:
        base, dropped = _base_folder(root, each)
        bases.add(base)
        prefixes: dict[str, str] = {}
        for name, number in each.entries:
            label = by_folder.get(plain(_folder_name(name)))
            label = _label(name, number, each, known) if label is None else label
            if label is None or (name.endswith(LEFT_OUT) and _dassl(root, each.path.parent, {base})):
                continue
            folder, _, file = "/".join(name.split("/")[dropped:]).rpartition("/")
            if folder not in prefixes:
                prefixes[folder] = _prefix(root, _folder_on_disk(base, folder) or base / folder)
            path = prefixes[folder] + file
            if labels.setdefault(path, label) != label:
                both = f"{known.classes[labels[path]]} and {known.classes[label]}"
                raise DataError(f"{each.path}: {name} is {both} in the lists of {each.domain}; fix one of them")
            rows.setdefault(each.part, set()).add(path)
    names = tuple(sorted(labels, key=lambda path: (labels[path], path)))
    folds = {
        part: np.array([row for row, name in enumerate(names) if name in members], np.int64)
        for part, members in rows.items()
        if part
    }
    return Records(Files(root, names), np.array([labels[name] for name in names], np.int64), folds), bases


def _label(name: str, number: int, listed: Listed, known: Known) -> int | None:
    """Return the label of an entry without a class folder from its number; None for a class that is not read."""
    if known.subset:
        return None
    label = number - listed.base
    if not 0 <= label < len(known.classes):
        raise DataError(
            f"{listed.path}: the label of {name} is {number}; expected {listed.base} to "
            f"{listed.base + len(known.classes) - 1}; fix the list"
        )
    return label


def _base_folder(root: Path, listed: Listed) -> tuple[Path, int]:
    """Return the folder that a list's paths are relative to, and how many of their first parts to drop."""
    tops = [root / name for name in IMAGES if (root / name).is_dir()]
    for name, _ in listed.entries[:MAX_TRIED]:
        parts = name.split("/")
        for dropped in range(len(parts)):
            if dropped == 0 and name.startswith("/"):
                continue  # an absolute path: look under the root first, then at the path itself
            for top in tops:
                folder = _folder_on_disk(top, "/".join(parts[dropped:-1]))
                if folder and (folder / parts[-1]).is_file():
                    return top, dropped
        if Path(name).is_file() and name.startswith("/"):
            return Path("/"), 0
    first = listed.entries[0][0] if listed.entries else "nothing"
    tried = ", ".join(map(str, tops))
    raise MissingError(
        f"{listed.path} lists {first}, which does not exist in {tried}; put the images into one of these"
    )


def _folder_on_disk(top: Path, folder: str) -> Path | None:
    """Return the folder that a list names; each part may have another spelling on disk."""
    current = top
    for part in folder.split("/"):
        similar = [current / part]
        if not similar[0].is_dir():
            similar = [path for path in subfolders(current) if plain(path.name) == plain(part)]
        if len(similar) != 1:
            return None
        current = similar[0]
    return current


def _prefix(root: Path, folder: Path) -> str:
    """Return the first part of the names of a folder's images, relative to the root if possible."""
    if folder == root:
        return ""
    return f"{(folder.relative_to(root) if folder.is_relative_to(root) else folder).as_posix()}/"


def _dassl(root: Path, folder: Path, bases: set[Path]) -> bool:
    return folder == root / "splits" and bases == {root / "images"}


def _within(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) and path != root else "the root folder"
