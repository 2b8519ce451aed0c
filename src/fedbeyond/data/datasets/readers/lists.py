"""Lists of files: a line holds a path and a number, a text file is one part of one domain.

PACS has them in several forms (the original and GA, Dassl, JiGen), also VLCS, OfficeHome (GA), DomainNet and GDRBench.
Numbers begin with 0 or with 1, paths are those of somebody else's computer; the class folder in a path decides.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ....errors import DataError, MissingError
from ...storage.listing import Files, Listing, Records
from ..naming import Known, ordered, plain, spellings, subfolders
from .folders import PARTS

NAMED = re.compile(r"(?P<domain>.+)_(?P<part>train|crossval|val|test|img_label_list)(_kfold)?\.txt", re.IGNORECASE)
WHERE = {"splits", "txtlists", "lists", "data", "rawimages", "trainvalsplitsandh5pyfilespreread"}
IMAGES = ("", "images", "raw_images", "kfold")
LEFT_OUT = "sketch/dog/n02103406_4068-1.png"  # Dassl: "this image has problems"; it was corrupt in early copies
TRIED, NAMED_AT_MOST = 50, 3

Entry = tuple[str, int]


class Listed(NamedTuple):
    """A list of files: the domain and part it is of, its lines, and the number of the first class."""

    path: Path
    domain: str
    part: str  # train, val, test, or nothing: the whole domain
    entries: list[Entry]
    base: int


def lists(root: Path, known: Known) -> Listing | None:
    """Lists `<domain>_<part>.txt` (also `_kfold`) or `<domain>_img_label_list.txt`, and the images they name."""
    found = survey(root, known)
    by_domain = ordered(
        {each.domain: [other for other in found if other.domain == each.domain] for each in found}, known
    )
    if by_domain is None:
        return None
    classes = known.classes or _named(entry for each in found for entry in each.entries)
    known, domains, bases = known._replace(classes=classes), {}, set()
    for domain, parts in by_domain.items():
        domains[domain], where = _records(root, parts, known)
        bases |= where
    folder = found[0].path.parent
    layout = (
        f"lists of files in {_within(root, folder)}, images in {', '.join(sorted(_within(root, b) for b in bases))}"
    )
    if any(each.base for each in found):
        layout += ", labels from 1"
    if _dassl(root, folder, bases) and any(name.endswith(LEFT_OUT) for each in found for name, _ in each.entries):
        layout += f", without {LEFT_OUT} as in Dassl"
    return Listing(classes, domains, layout)


def survey(root: Path, known: Known) -> list[Listed]:
    """The lists of known domains in a folder and in those where lists are kept."""
    meant = spellings((*known.domains, *known.extra), known.others)
    found: dict[tuple[str, str], Listed] = {}
    for path in _candidates(root):
        name = NAMED.fullmatch(path.name)
        domain = meant.get(plain(name["domain"])) if name else None
        if name and domain:
            part = PARTS.get(name["part"].lower(), "")
            if (domain, part) not in found:
                found[domain, part] = Listed(path, domain, part, _entries(path), 0)
    numbers = [number for each in found.values() for _, number in each.entries]
    return [each._replace(base=_base(each, numbers, known)) for each in found.values()]


def _candidates(root: Path) -> Iterator[Path]:
    """Text files in a folder and, two levels down, in folders where lists are kept."""
    likely = [path for path in subfolders(root) if plain(path.name) in WHERE]
    deeper = [path for top in likely for path in subfolders(top) if plain(path.name) in WHERE]
    for folder in (root, *likely, *deeper):
        yield from sorted(folder.glob("*.txt"))


def _entries(path: Path) -> list[Entry]:
    """The lines of a list; blanks belong to the path, but for the last."""
    entries = []
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        if line.strip():
            name, _, label = line.strip().rpartition(" ")
            if not name or not label.isdecimal():
                raise DataError(f"{path}, line {number}: {line.strip()[:80]!r} is not a path, a blank and a number")
            entries.append((name.strip().replace("\\", "/"), int(label)))
    return entries


def _folders(known: Known) -> dict[str, str]:
    numbered = {str(place): name for place, name in enumerate(known.classes)}
    return {**numbered, **spellings(known.classes, known.others)}


def _class_of(name: str, meant: dict[str, str]) -> str | None:
    """The class that the folder of a listed image is of."""
    return meant.get(plain(name.rpartition("/")[0].rpartition("/")[2]))


def _base(listed: Listed, numbers: Sequence[int], known: Known) -> int:
    """The number that the first class has in a list, which must agree with the class folders in its paths."""
    meant, free = _folders(known), not known.classes or known.part or not listed.part
    told = [(name, number, _class_of(name, meant)) for name, number in listed.entries]
    certain = [(name, number, known.classes.index(found)) for name, number, found in told if found]
    if free:
        places = {place for _, _, place in certain}
        return int(bool(certain) and len(places) == len(known.classes) and _shifted(certain))
    if not certain:
        if max(numbers, default=0) > len(known.classes) or (0 in numbers and len(known.classes) in numbers):
            raise DataError(
                f"{listed.path}: labels {min(numbers)} to {max(numbers)}; expected 0 to {len(known.classes) - 1} "
                f"or 1 to {len(known.classes)}: {', '.join(known.classes)}"
            )
        return int(0 not in numbers and len(known.classes) in numbers)
    base = int(Counter(number - place for _, number, place in certain)[1] > len(certain) / 2)
    wrong = [(name, number, place) for name, number, place in certain if number - base != place]
    if wrong:
        some = "; ".join(
            f"{name} is {number}, expected {place + base} ({known.classes[place]})"
            for name, number, place in wrong[:NAMED_AT_MOST]
        )
        more = f"; and {len(wrong) - NAMED_AT_MOST} more" if len(wrong) > NAMED_AT_MOST else ""
        raise DataError(f"{listed.path}: labels contradict the folders of the images: {some}{more}; mend the list")
    return base


def _shifted(certain: Sequence[tuple[str, int, int]]) -> bool:
    return all(number == place + 1 for _, number, place in certain)


def _records(root: Path, parts: Sequence[Listed], known: Known) -> tuple[Records, set[Path]]:
    """A domain's images by class and name, the rows of each part, and the folders they are in."""
    labels: dict[str, int] = {}
    rows: dict[str, set[str]] = {}
    bases, meant = set(), _folders(known)
    for each in parts:
        base, dropped = _place(root, each)
        bases.add(base)
        homes: dict[str, str] = {}
        for name, number in each.entries:
            label = _label(name, number, each, known, meant)
            if label is None or (name.endswith(LEFT_OUT) and _dassl(root, each.path.parent, {base})):
                continue
            folder, _, file = "/".join(name.split("/")[dropped:]).rpartition("/")
            if folder not in homes:
                homes[folder] = _begins(root, _spelled(base, folder) or base / folder)
            path = homes[folder] + file
            if labels.setdefault(path, label) != label:
                both = f"{known.classes[labels[path]]} and {known.classes[label]}"
                raise DataError(f"{each.path}: {name} is {both} in the lists of {each.domain}; mend one of them")
            rows.setdefault(each.part, set()).add(path)
    names = tuple(sorted(labels, key=lambda path: (labels[path], path)))
    folds = {
        part: np.array([place for place, name in enumerate(names) if name in members], np.int64)
        for part, members in rows.items()
        if part
    }
    return Records(Files(root, names), np.array([labels[name] for name in names], np.int64), folds), bases


def _label(name: str, number: int, listed: Listed, known: Known, meant: dict[str, str]) -> int | None:
    """The label of an entry: that of its class folder, else its number; nothing for a class that is not wanted."""
    found = _class_of(name, meant)
    if found is not None:
        return known.classes.index(found)
    if known.part:
        return None
    label = number - listed.base
    if not 0 <= label < len(known.classes):
        raise DataError(
            f"{listed.path}: {name} is {number}; expected one of {len(known.classes)} classes; mend the list"
        )
    return label


def _place(root: Path, listed: Listed) -> tuple[Path, int]:
    """The folder that a list's paths begin in, and how many of their first steps lead elsewhere."""
    tops = [root / name for name in IMAGES if (root / name).is_dir()]
    for name, _ in listed.entries[:TRIED]:
        steps = name.split("/")
        for dropped in range(len(steps)):
            if dropped == 0 and name.startswith("/"):
                continue  # an absolute path: under the root if it is there, else where it says
            for top in tops:
                folder = _spelled(top, "/".join(steps[dropped:-1]))
                if folder and (folder / steps[-1]).is_file():
                    return top, dropped
        if Path(name).is_file() and name.startswith("/"):
            return Path("/"), 0
    first = listed.entries[0][0] if listed.entries else "nothing"
    tried = ", ".join(map(str, tops))
    raise MissingError(f"{listed.path} lists {first}, which is not there; looked in {tried}; put the images beside it")


def _spelled(top: Path, folder: str) -> Path | None:
    """Where a folder that a list names is, under whatever spelling its steps have on disk."""
    place = top
    for step in folder.split("/"):
        alike = [place / step]
        if not alike[0].is_dir():
            alike = [path for path in subfolders(place) if plain(path.name) == plain(step)]
        if len(alike) != 1:
            return None
        place = alike[0]
    return place


def _begins(root: Path, folder: Path) -> str:
    """What the names of a folder's images begin with, relative to the root if it lies there."""
    if folder == root:
        return ""
    return f"{(folder.relative_to(root) if folder.is_relative_to(root) else folder).as_posix()}/"


def _named(entries: Iterator[Entry]) -> tuple[str, ...]:
    """The classes that paths have as folders."""
    names: dict[str, str] = {}
    for name, _ in entries:
        folder = name.rpartition("/")[0].rpartition("/")[2]
        names.setdefault(plain(folder), folder)
    return tuple(names[key] for key in sorted(names))


def _dassl(root: Path, folder: Path, bases: set[Path]) -> bool:
    return folder == root / "splits" and bases == {root / "images"}


def _within(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) and path != root else "the folder itself"
