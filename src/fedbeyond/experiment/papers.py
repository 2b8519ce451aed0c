"""Where methods are from: their papers, as the docstrings of their files say."""

import ast
import inspect
import re
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from . import registry


class Paper(NamedTuple):
    """Where a method is from, as the docstring of its file says."""

    title: str
    authors: str
    venue: str
    year: str
    link: str

    @property
    def short(self) -> str:
        """As in a sentence: the first author, and where it appeared."""
        first, *others = self.authors.split(", ")
        return ", ".join(filter(None, (f"{first} et al." if others else first, self.venue)))


def paper(shelf: str, name: str) -> Paper | None:
    """The paper of a method: its title, then a line of `authors; venue year; link`."""
    title, _, rest = _docstring(shelf, name).partition("\n\n")
    parts = " ".join(rest.partition("\n\n")[0].split()).rstrip(".").split("; ")
    found = re.fullmatch(r"(.*?) ?(\d{4})", parts[1]) if len(parts) > 1 else None
    if not found:
        return None
    link = parts[2] if len(parts) > 2 else ""
    return Paper(" ".join(title.split()).rstrip("."), parts[0], found[1], found[2], link)


def _docstring(shelf: str, name: str) -> str:
    """What the file of a method says of itself; it is read, not run, where that is possible: running it takes torch."""
    factory = registry.known(shelf)[name]
    if isinstance(factory, str):
        spec = find_spec(factory.partition(":")[0])
        if spec and spec.origin and spec.origin.endswith(".py"):
            return ast.get_docstring(ast.parse(Path(spec.origin).read_text("utf-8"))) or ""
    return inspect.getdoc(inspect.getmodule(registry.find(shelf, name))) or ""
