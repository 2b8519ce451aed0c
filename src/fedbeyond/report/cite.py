"""The papers to cite for a table, read from the docstrings of its methods."""

from collections.abc import Iterable

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


def references(methods: Iterable[str]) -> tuple[list[tuple[list[str], Paper]], list[str]]:
    """Return the papers of methods, each with the names that come from it, and the names without a known paper."""
    papers: dict[str, tuple[list[str], Paper]] = {}
    unknown = []
    for name in dict.fromkeys(name for method in methods for name in _names(method)):
        group = next((group for group in ("methods", "wrappers") if name in registry.REGISTRY[group]), None)
        origin = paper(group, name) if group else None
        if origin is None:
            unknown.append(name)
        else:  # one entry a paper, with the title of its first name, which names no variant
            papers.setdefault(f"{origin.authors} {origin.year} {origin.link}", ([], origin))[0].append(name)
    return list(papers.values()), unknown


def _names(method: str) -> list[str]:
    try:
        return [part.name for part in parse(method)]
    except ConfigError:  # the name is not a valid method spelling
        return [method]
