"""The usual names of a known dataset's domains and classes, and how names on disk are matched with them.

Names differ between copies. They are compared without case, `-`, `_` and blanks, and aliases are accepted.
"""

import re
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

from ...errors import DataError

Names = tuple[str, ...]
Thing = TypeVar("Thing")


class Known(NamedTuple):
    """The usual domains, classes and image size of a known dataset."""

    domains: Names
    classes: Names  # empty: all class folders
    size: int = 224
    aliases: Mapping[str, Names] = {}  # other names of domains and classes
    subset: bool = False  # the classes are some of those on disk
    any_two: bool = False  # any two of the domains are enough
    extra: Names = ()  # domains that only some copies have

    def domain_spellings(self) -> dict[str, str]:
        """Map the plain form of each name of a domain, also of those in `extra`, to the usual name."""
        return spellings((*self.domains, *self.extra), self.aliases)

    def missing(self, present: Container[str]) -> str:
        """Return the domains, but those in `extra`, that are not present, separated by commas."""
        return ", ".join(name for name in self.domains if name not in present)

    def in_usual_order(self, items: Mapping[str, Thing]) -> dict[str, Thing] | None:
        """Return the items of known domains in the usual order, or None if too many domains are missing."""
        present = {name: items[name] for name in (*self.domains, *self.extra) if name in items}
        return None if self.missing(present) and not (self.any_two and len(present) > 1) else present


def plain(name: str) -> str:
    """Return a name without case, `-`, `_` and blanks."""
    return re.sub(r"[\s_-]+", "", name).casefold()


def spellings(names: Iterable[str], aliases: Mapping[str, Names]) -> dict[str, str]:
    """Map the plain form of each name and alias to the usual name."""
    return {plain(spelled): name for name in names for spelled in (name, *aliases.get(name, ()))}


def class_names(folders: Iterable[str]) -> Names:
    """Return the classes of folders, in the first spelling of each, sorted by their plain form."""
    names: dict[str, str] = {}
    for folder in folders:
        names.setdefault(plain(folder), folder)
    return tuple(names[key] for key in sorted(names))


def match_paths(top: Path, paths: Iterable[Path], usual: Mapping[str, str]) -> dict[str, Path]:
    """Return the folder or file of each usual name, given by its spellings; ignore paths that match no name."""
    matches: dict[str, Path] = {}
    for path in paths:
        name = usual.get(plain(path.stem if path.is_file() else path.name))
        if name in matches:
            both = f"{matches[name].name} and {path.name}"
            what = "files" if path.is_file() else "folders"
            raise DataError(f"{top}: {both} are both {what} of {name}; keep one of them there")
        if name is not None:
            matches[name] = path
    return matches


def subfolders(top: Path) -> list[Path]:
    """Return the folders in a folder, sorted, without hidden ones and the __MACOSX of archives."""
    return [path for path in sorted(top.iterdir()) if path.is_dir() and not path.name.startswith((".", "__MACOSX"))]
