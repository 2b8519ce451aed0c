"""The runs of a grid: every method with every target left out and every seed."""

from collections.abc import Iterable, Iterator

from ..data.partition.splits import sources
from . import build, registry
from .config import Config, cells


def grid(config: Config, domains: Iterable[str] = ()) -> Iterator[Config]:
    """The cells of a grid, once all its names are known to be good; `domains` are named if data are not there."""
    require_methods(config)
    names = tuple(domains) or build.domains(config.data)
    for cell in cells(config, names):
        sources(sorted(names), cell.target)
        yield cell


def require_methods(config: Config) -> None:
    """Refuse methods that cannot be built, before data are read."""
    registry.load_plugins(config.plugins)
    optimizer = registry.make_one("optimizers", config.optimizer)
    for method in config.bench.methods or (config.method,):
        registry.build(method, optimizer=optimizer)
