"""The papers of methods and wrappers, read from the docstrings of their files."""

import ast
import inspect
import re
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from . import registry


class Paper(NamedTuple):
    """The paper that a method comes from."""

    title: str
    authors: str
    venue: str
    year: str
    link: str

    @property
    def short(self) -> str:
        """Return the first author and the venue, as in a citation."""
        first, *others = self.authors.split(", ")
        return ", ".join(filter(None, (f"{first} et al." if others else first, self.venue)))


def paper(group: str, name: str) -> Paper | None:
    """Return the paper of a method, read from lines `title` and `authors; venue year; link`; None if it has none."""
    title, _, rest = _docstring(group, name).partition("\n\n")
    parts = " ".join(rest.partition("\n\n")[0].split()).rstrip(".").split("; ")
    venue = re.fullmatch(r"(.*?) ?(\d{4})", parts[1]) if len(parts) > 1 else None
    if not venue:
        return None
    link = parts[2] if len(parts) > 2 else ""
    return Paper(" ".join(title.split()).rstrip("."), parts[0], venue[1], venue[2], link)


def _docstring(group: str, name: str) -> str:
    """Return the docstring of a method's file; parse the file where possible, because an import needs torch."""
    factory = registry.known(group)[name]
    if isinstance(factory, str):
        spec = find_spec(factory.partition(":")[0])
        if spec and spec.origin and spec.origin.endswith(".py"):
            return ast.get_docstring(ast.parse(Path(spec.origin).read_text("utf-8"))) or ""
    return inspect.getdoc(inspect.getmodule(registry.find(group, name))) or ""
