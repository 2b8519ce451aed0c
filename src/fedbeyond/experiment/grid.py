"""The runs of a grid: every method with every target left out and every seed."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ..data.partition.splits import source_domains as ensure_target
from ..spec import Part, parse
from . import build, registry
from .config import Config, cells


def grid(config: Config, domains: Iterable[str] = ()) -> Iterator[Config]:
    """Yield the runs of a grid after checking its methods and targets; give `domains` if the data are not on disk."""
    ensure_methods(config)
    others = repeated(config)
    methods = tuple(method for method in config.bench.methods if method not in others)
    config = replace(config, bench=replace(config.bench, methods=methods))
    names = tuple(domains) or build.domains(config.data)
    for cell in cells(config, names):
        ensure_target(sorted(names), cell.target)
        yield cell


def repeated(config: Config) -> dict[str, str]:
    """Return each method that is an earlier one written in another way, by its spelling, and the earlier spelling."""
    first: list[tuple[str, list[Part]]] = []
    others: dict[str, str] = {}
    for method in config.bench.methods:
        base, *wrappers = parse(method)
        parts = [registry.with_defaults("methods", base)]
        parts += [registry.with_defaults("wrappers", part) for part in wrappers]
        same = next((name for name, known in first if known == parts), None)
        if same is None:
            first.append((method, parts))
        else:
            others[method] = same
    return others


def describe_repeated(config: Config) -> list[str]:
    """Return a line for each method of a grid that is an earlier one written in another way."""
    return [f"{other} is {first} written in another way: it is run once" for other, first in repeated(config).items()]


def ensure_methods(config: Config) -> None:
    """Raise `ConfigError` if a method cannot be built, before data are read."""
    registry.load_plugins(config.plugins)
    optimizer = registry.make_one("optimizers", config.optimizer)
    for method in config.bench.methods or (config.method,):
        registry.build(method, optimizer=optimizer)
