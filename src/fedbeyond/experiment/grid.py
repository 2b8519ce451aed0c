"""The runs of a grid: every method with every target left out and every seed."""

from collections.abc import Iterable, Iterator

from ..data.partition.splits import source_domains as ensure_target
from . import build, registry
from .config import Config, cells


def grid(config: Config, domains: Iterable[str] = ()) -> Iterator[Config]:
    """Yield the runs of a grid after checking its methods and targets; give `domains` if the data are not on disk."""
    ensure_methods(config)
    names = tuple(domains) or build.domains(config.data)
    for cell in cells(config, names):
        ensure_target(sorted(names), cell.target)
        yield cell


def ensure_methods(config: Config) -> None:
    """Raise `ConfigError` if a method cannot be built, before data are read."""
    registry.load_plugins(config.plugins)
    optimizer = registry.make_one("optimizers", config.optimizer)
    for method in config.bench.methods or (config.method,):
        registry.build(method, optimizer=optimizer)
