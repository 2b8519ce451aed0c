"""What to cite for a table: the papers of its methods, as their files say."""

from collections.abc import Iterable
from typing import NamedTuple

from .. import __version__
from ..errors import ConfigError
from ..experiment import registry
from ..experiment.papers import Paper, paper
from ..spec import parse

OURS = f"""@software{{fedbeyond,
  title   = {{fedbeyond: federated domain generalization}},
  author  = {{{{The fedbeyond authors}}}},
  version = {{{__version__}}},
  license = {{Apache-2.0}}
}}"""


class Reference(NamedTuple):
    """A paper, and the parts of methods that are from it."""

    names: tuple[str, ...]
    paper: Paper


def references(methods: Iterable[str]) -> tuple[list[Reference], list[str]]:
    """The papers behind methods, and the names that have none we know of."""
    found: dict[str, tuple[Paper, list[str]]] = {}
    unknown = []
    for name in dict.fromkeys(name for method in methods for name in _names(method)):
        origin = _paper(name)
        if origin is None:
            unknown.append(name)
        else:  # by its title; that of the earliest name, which says nothing of a variant
            found.setdefault(f"{origin.authors} {origin.year} {origin.link}", (origin, []))[1].append(name)
    return [Reference(tuple(names), origin) for origin, names in found.values()], unknown


def _names(method: str) -> list[str]:
    try:
        return [part.name for part in parse(method)]
    except ConfigError:  # results of something that is not spelled as methods are
        return [method]


def _paper(name: str) -> Paper | None:
    for shelf in ("methods", "wrappers"):
        if name in registry.SHELVES[shelf]:
            return paper(shelf, name)
    return None
