"""What would be run: told before anything is trained."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import nn

from .. import tree
from ..classifier import Classifier, Task, read
from ..data.datasets._benchmarks import Outline, outline
from ..data.partition import split_file
from ..data.partition.assignment import Division, by_class, count
from ..data.partition.splits import cut
from ..engine.reestimation import levels_of
from ..errors import ConfigError, MissingError
from ..evaluation.cautions import Held, majority_rate, of_sites, wrapped
from ..images import Domains
from ..method import Method
from ..networks import weights as files
from ..networks.moments import tracked
from ..spec import parse, unseen_domains
from ..wrappers.privacy import promise
from . import build, registry
from .config import Config, Train
from .grid import grid, require_methods


def plan(config: Config) -> str:
    """The runs, the sites, the sizes and what leaves each site, without training."""
    require_methods(config)
    found, missing = look(config.data)
    runs = list(grid(config, found.images if isinstance(found, Domains) else found.domains))
    lines = [f"{len(runs)} run{'s' if len(runs) > 1 else ''} of {config.train.rounds} rounds on {config.data}"]
    lines += [missing] if missing else []
    lines += weights(config, found)
    methods = list(dict.fromkeys(cell.method for cell in runs))
    targets = list(dict.fromkeys(str(cell.target) for cell in runs))
    lines.append(f"methods: {', '.join(methods)}")
    lines.append(f"targets: {', '.join(targets)}; seeds: {', '.join(map(str, dict.fromkeys(c.seed for c in runs)))}")
    lines += ["", *sites(runs, found)]
    for told in leaving([next(cell for cell in runs if cell.method == method) for method in methods], found):
        lines += ["", *told]
    return "\n".join(lines) + "\n"


def look(spelled: str) -> tuple[Domains | Outline, str]:
    """A dataset, or what is known of it and a line that says why it is only that."""
    try:
        return build.dataset(spelled), ""
    except MissingError as error:
        known = outline(spelled)
        if known is None:
            raise
        return known, f"data: not found ({error}); planned from what is known of {known.name}"


def sites(runs: list[Config], found: Domains | Outline) -> Iterator[str]:
    """The domains or clients, and how many images each has for what."""
    config = runs[0]
    train = config.train
    if train.clients_per_domain > 1:
        how = f"with label_skew {train.label_skew}" if train.label_skew else "labels evenly"
        yield f"each domain that takes part is shared out to {train.clients_per_domain} sites, {how}"
    if isinstance(found, Outline):
        yield f"domains: {', '.join(found.domains)}"
    elif train.plain and train.validation != "field":
        yield "domains (training / validation images):"
        held: dict[str, Held] = {}
        for name, (_, labels) in found.images.items():
            own, val = cut(np.arange(len(labels)), train.validation, name, config.seed)
            every = by_class(found, {name: np.arange(len(labels))})
            held[name] = Held(name, len(own), len(val), every)
            yield f"  {name:16} {len(own):6,} / {len(val):,}   or unseen, all {len(labels):,}{majority(every)}"
        yield from wrapped(of_sites(held, found.classes))
    else:
        yield from clients(config, found)


def clients(config: Config, found: Domains) -> Iterator[str]:
    """The clients of a run by name, and what each holds."""
    divided = build.division(config, found)
    apart = any(holding.test for holding in divided.clients.values())
    parts = "training / validation / test" if apart else "training / validation"
    yield f"clients ({parts} images) with {config.target} unseen, seed {config.seed}:"
    held = held_by(divided, found)
    for name, holding in divided.clients.items():
        mixed = {domain: len(rows) for domain, rows in holding.train.items()}
        told = f"   of {', '.join(f'{domain} {many:,}' for domain, many in mixed.items())}" if len(mixed) > 1 else ""
        test = f" / {count(holding.test):,}" if apart else ""
        rate = majority(held[name].by_class)
        yield f"  {name:16} {count(holding.train):6,} / {count(holding.val):,}{test}{rate}{told}"
    for domain, rows in divided.tests.items():
        held[domain] = Held(domain, None, None, by_class(found, {domain: rows}))
        whole, rate = len(found.images[domain][1]), majority(held[domain].by_class)
        many = f"all {whole:,}" if len(rows) == whole else f"{len(rows):,} of {whole:,}"
        yield f"  {domain:16} unseen, {many}{rate}"
    yield from wrapped(of_sites(held, found.classes))


def held_by(divided: Division, found: Domains) -> dict[str, Held]:
    """Count what each client holds for training and validation, and of which classes."""
    held = {}
    for name, holding in divided.clients.items():
        train, val = by_class(found, holding.train), by_class(found, holding.val)
        held[name] = Held(holding.domain, sum(train), sum(val), [sum(both) for both in zip(train, val, strict=True)])
    return held


def majority(counts: Sequence[float]) -> str:
    """Print the share of the most frequent class."""
    rate = majority_rate(counts)
    return "" if rate is None else f"   majority class {rate:.0%}"


def write_splits(config: Config, out: str) -> Iterator[str]:
    """Write who holds what in each run of a configuration that differs in that; a line for each file."""
    found = build.dataset(config.data)
    cells = {(cell.target, cell.seed): cell for cell in grid(config, found.images)}
    written: dict[Path, Config] = {}
    for cell in cells.values():
        path = replace(cell, train=replace(Train(), split=out)).split_file() or Path(out)
        if path in written:
            raise ConfigError(
                f"{out}: {len(cells)} splits are to be written and their names do not differ; choose one with "
                f"--set target=... --set seed=..., or call them '{{target}}-{{seed}}.json'"
            )
        written[path] = cell
    for path, cell in written.items():
        divided = build.division(cell, found)
        split_file.save(path, divided, found, str(cell.target))
        many = f"{len(divided.clients)} client{'s' if len(divided.clients) > 1 else ''}"
        yield f"{path}: {many}, {cell.target} unseen; use it with --set train.split={out}"


def leaving(cells: list[Config], found: Domains | Outline) -> Iterator[list[str]]:
    """Each method's size, and what leaves each site in each round."""
    shape = found.shape if isinstance(found, Outline) else _shape(found)
    made = cache(registry.make_one("networks", unloaded(cells[0].network)))

    def network(task: Task) -> Classifier:
        prototype: Classifier = made(task)
        return deepcopy(prototype)  # first numbers, which nobody needs here, take longer than a copy

    for cell in cells:
        optimizer = registry.make_one("optimizers", cell.optimizer)
        method = build.adapted(registry.build(cell.method, optimizer=optimizer), cell.train)
        many = sources(method, cell, found)
        build.require(method, cell, many)
        with torch.device("meta"):  # shapes are all that is needed
            nets = method.networks(Task(found.classes, shape, network, many))
        shared = {name: read(nets[name]) for name in method.shared}
        numbers = sum(param.numel() for param in nets["model"].parameters())
        told = [f"{cell.method}: {cell.network} with {numbers:,} parameters; leaves each site, in a round at the most:"]
        if method.pooled:
            told = [f"{cell.method}: {cell.network} with {numbers:,} parameters; NOT FEDERATED, a reference:"]
            told.append("  all images and labels of all sites are pooled in one place before the first round")
            yield told
            continue
        for kind, names in method.sends.items():
            for name, sent in names.items():
                size = tree.size(sent.like(shared, {}))
                told.append(f"  {name:16} {sent.kind:12} {size:12,} bytes  (in answer to {kind!r})")
        told += statistics(method, nets["model"], shape)
        told.append(f"  the server needs {'sums of these' if method.sums else 'the reply of each site'}")
        promised = promise(method, cell.train.rounds)
        told += [f"  {promised}"] if promised else []
        yield told


def statistics(method: Method, net: nn.Module, shape: tuple[int, ...]) -> Iterator[str]:
    """What leaves a site, and how often it is asked, where BatchNorm statistics are re-estimated."""
    measured = levels_of(method, net, shape)
    if measured:
        channels = sum(layer.num_features for layer in tracked(net).values())
        yield f"  {'moments':16} {'statistics':12} {8 * channels:12,} bytes  (in answer to 'statistics')"
        many = f"{len(measured)} exchange{'s' if len(measured) > 1 else ''}"
        yield f"  BatchNorm is re-estimated in {many} after each round that is evaluated"


def sources(method: Method, config: Config, found: Domains | Outline) -> int:
    """From how many sites, or domains if they are pooled, a method learns in a run."""
    if isinstance(found, Domains):
        return build.sources(method, build.division(config, found))
    domains = len(found.domains) - len(unseen_domains(config.target))
    return domains if method.pooled else domains * config.train.clients_per_domain


def weights(config: Config, found: Domains | Outline) -> Iterator[str]:
    """What is wrong with the file of a network's weights, if only that it is not there."""
    part, *_ = parse(config.network)
    if part.options.get("weights"):
        try:
            files.read(part.options["weights"])
        except MissingError as error:
            yield str(error)
            return
        shape = found.shape if isinstance(found, Outline) else _shape(found)
        network = registry.make_one("networks", config.network)
        network(Task(found.classes, shape, network))


def unloaded(network: str) -> str:
    """A network's spelling without the file of its weights."""
    part, *_ = parse(network)
    return str(part._replace(options={key: value for key, value in part.options.items() if key != "weights"}))


def _shape(domains: Domains) -> tuple[int, ...]:
    return tuple(next(iter(domains.images.values()))[0].shape[1:])
