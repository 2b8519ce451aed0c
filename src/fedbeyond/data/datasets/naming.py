"""What the field calls a dataset's domains and classes, and how a name on disk is matched with it.

Names differ from copy to copy, so they are compared without regard to case, `-`, `_` and blanks, and under the other
names that are in use.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

from ...errors import DataError

Names = tuple[str, ...]
Thing = TypeVar("Thing")


class Known(NamedTuple):
    """A dataset as the field knows it."""

    domains: Names
    classes: Names  # none: those that are found
    size: int = 224
    others: Mapping[str, Names] = {}  # other names of domains and classes
    part: bool = False  # the classes are some of those on disk
    some: bool = False  # any two of the domains make a copy
    extra: Names = ()  # domains that only some copies have


def plain(name: str) -> str:
    """A name without what differs between spellings."""
    return re.sub(r"[\s_-]+", "", name).casefold()


def spellings(names: Iterable[str], others: Mapping[str, Names]) -> dict[str, str]:
    """The usual name behind each plain one."""
    return {plain(spelled): name for name in names for spelled in (name, *others.get(name, ()))}


def matched(top: Path, paths: Iterable[Path], names: Iterable[str], others: Mapping[str, Names]) -> dict[str, Path]:
    """The folder or file of each name; those of no name are left alone."""
    meant = spellings(names, others)
    places: dict[str, Path] = {}
    for path in paths:
        name = meant.get(plain(path.stem if path.is_file() else path.name))
        if name in places:
            both = f"{places[name].name} and {path.name}"
            what = "files" if path.is_file() else "folders"
            raise DataError(f"{top}: {both} are both {what} of {name}; keep one of them there")
        if name is not None:
            places[name] = path
    return places


def ordered(found: Mapping[str, Thing], known: Known) -> dict[str, Thing] | None:
    """What was found of each domain, in the usual order, if it is enough for a copy of the dataset."""
    there = {name: found[name] for name in (*known.domains, *known.extra) if name in found}
    lacking = [name for name in known.domains if name not in there]
    return None if lacking and not (known.some and len(there) > 1) else there


def subfolders(top: Path) -> list[Path]:
    """The folders in a folder but for hidden ones, and what macOS puts into archives."""
    return [path for path in sorted(top.iterdir()) if path.is_dir() and not path.name.startswith((".", "__MACOSX"))]
