"""What would be run, and what can be chosen: told before anything is trained."""

import inspect
from collections.abc import Iterator

from . import experiment, registry, tree
from .bench import grid
from .config import Config
from .data.splits import cut
from .errors import ConfigError


def plan(config: Config) -> str:
    """The runs, the sites, the sizes and what leaves each site, without training."""
    runs = list(grid(config))
    lines = [f"{len(runs)} run{'s' if len(runs) > 1 else ''} of {config.train.rounds} rounds on {config.data}"]
    methods = list(dict.fromkeys(cell.method for cell in runs))
    targets = list(dict.fromkeys(str(cell.target) for cell in runs))
    lines.append(f"methods: {', '.join(methods)}")
    lines.append(f"targets: {', '.join(targets)}; seeds: {', '.join(map(str, dict.fromkeys(c.seed for c in runs)))}")
    lines += ["", "sites (training / validation images):"]
    domains = experiment.dataset(config.data)
    for name, (_, labels) in domains.images.items():
        train, val = (len(y) for _, y in cut(domains.images[name], config.train.validation, name, config.seed).values())
        lines.append(f"  {name:16} {train:6,} / {val:,}   or unseen, all {len(labels):,}")
    for method in methods:
        first = next(cell for cell in runs if cell.method == method)
        lines += ["", *leaving(first)]
    return "\n".join(lines) + "\n"


def leaving(config: Config) -> Iterator[str]:
    """A method's size, and what leaves each site in each round."""
    setup = experiment.prepare(config)
    numbers = sum(param.numel() for param in setup.nets["model"].parameters())
    yield f"{config.method}: {config.network} with {numbers:,} parameters; leaves each site every round:"
    for kind, names in setup.method.sends.items():
        for name, sent in names.items():
            size = tree.size(sent.like(setup.gate.nets, {}))
            yield f"  {name:16} {sent.kind:12} {size:12,} bytes  (in answer to {kind!r})"


def catalogue(shelf: str = "") -> str:
    """Every name on a shelf (or on all), what it is, its options and presets."""
    if shelf and shelf not in registry.SHELVES:
        raise ConfigError(f"nothing to list under {shelf!r}; {registry.nearest(shelf, registry.SHELVES)}")
    lines = []
    for title in [shelf] if shelf else registry.SHELVES:
        lines.append(f"{title}:")
        for name in registry.known(title):
            factory = registry.find(title, name)
            options = ", ".join(f"{key}={p.default}" for key, p in registry.options(factory).items())
            presets = ", ".join(list(registry.presets(factory))[1:])
            lines.append(f"  {name:12} {(inspect.getdoc(factory) or '').splitlines()[0]}")
            lines += [f"  {'':12} options: {options}"] if options else []
            lines += [f"  {'':12} presets: default, {presets}"] if presets and title in ("methods", "wrappers") else []
    return "\n".join(lines) + "\n"
