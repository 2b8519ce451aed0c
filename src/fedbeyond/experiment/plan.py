"""Describe what a configuration would run: the runs, the sites, and what leaves each site. Nothing is trained."""

import math
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path

from torch import nn

from .. import tree
from .._method import Method
from ..batch import CachedCopies
from ..classifier import Task
from ..data.datasets._benchmarks import Outline, outline
from ..data.partition import split_file
from ..data.partition.assignment import Partition, all_rows, class_counts, count_rows
from ..data.partition.splits import cut
from ..data.storage.cache import amount
from ..errors import ConfigError, MissingError
from ..evaluation.cautions import SiteSamples, majority_rate, site_warnings, wrap_warnings
from ..images import Dataset
from ..networks import weights as weight_files
from ..networks.frozen import frozen_part, parameter_counts
from ..networks.moments import tracked_layers
from ..networks.prefix import tail_in
from ..spec import parse, unseen_domains
from ..wrappers.privacy import describe_guarantee
from . import build
from .config import Config, Train
from .grid import describe_repeated, ensure_methods, grid
from .outputs import why_uncached


def plan(config: Config) -> str:
    """Return the runs, the sites, the sizes and what leaves each site as text; train nothing."""
    ensure_methods(config)
    data, missing = dataset_or_outline(config.data)
    runs = list(grid(config, data.images if isinstance(data, Dataset) else data.domains))
    lines = [f"{len(runs)} run{'s' if len(runs) > 1 else ''} of {config.train.rounds} rounds on {config.data}"]
    lines += [*describe_repeated(config), *([missing] if missing else [])]
    lines += check_weights(config, data)
    methods = dict.fromkeys(cell.method for cell in runs)
    targets, seeds = dict.fromkeys(str(cell.target) for cell in runs), dict.fromkeys(str(cell.seed) for cell in runs)
    lines.append(f"methods: {', '.join(methods)}")
    lines.append(f"targets: {', '.join(targets)}; seeds: {', '.join(seeds)}")
    lines += ["", *describe_data(runs[0], data)]
    lines += describe_methods([next(cell for cell in runs if cell.method == name) for name in methods], data)
    return "\n".join(lines) + "\n"


def dataset_or_outline(spelled: str) -> tuple[Dataset | Outline, str]:
    """Load a dataset; if its files are missing, return the facts of a known benchmark, and a line with the reason."""
    try:
        return build.dataset(spelled), ""
    except MissingError as error:
        known = outline(spelled)
        if known is None:
            raise
        return known, f"data: not found ({error}); planned from the known facts of {known.name}"


def describe_data(config: Config, data: Dataset | Outline) -> Iterator[str]:
    """Yield a line for each domain or client: how many images it has for training, validation and test."""
    train = config.train
    if isinstance(data, Dataset) and data.about:
        yield from (*data.about, "")
    if train.clients_per_domain > 1:
        labels_rule = f"with label_skew {train.label_skew}" if train.label_skew else "labels spread evenly"
        yield f"each source domain is split over {train.clients_per_domain} sites, {labels_rule}"
    if isinstance(data, Outline):
        yield f"domains: {', '.join(data.domains)}"
    elif train.plain and train.validation != "official":
        yield "domains (training / validation images):"
        samples: dict[str, SiteSamples] = {}
        for name, (_, labels) in data.images.items():
            rows = all_rows(data, name)
            training, validation = cut(rows, train.validation, name, config.seed)
            counts = class_counts(data, {name: rows})
            samples[name] = SiteSamples(name, len(training), len(validation), counts)
            sizes = f"{len(training):6,} / {len(validation):,}   or unseen, all {len(labels):,}"
            yield f"  {name:16} {sizes}{format_majority(counts)}"
        yield from wrap_warnings(site_warnings(samples, data.classes))
    else:
        yield from describe_clients(config, data)


def describe_clients(config: Config, data: Dataset) -> Iterator[str]:
    """Yield a line for each client of a run and each unseen domain, with the number of images."""
    parts = build.partition(config, data)
    tested = any(rows.test for rows in parts.clients.values())
    columns = "training / validation / test" if tested else "training / validation"
    yield f"clients ({columns} images) with {config.target} unseen, seed {config.seed}:"
    samples = client_samples(parts, data)
    for name, rows in parts.clients.items():
        sizes = {domain: len(index) for domain, index in rows.train.items()}
        mix = f"   of {', '.join(f'{domain} {size:,}' for domain, size in sizes.items())}" if len(sizes) > 1 else ""
        test = f" / {count_rows(rows.test):,}" if tested else ""
        rate = format_majority(samples[name].by_class)
        yield f"  {name:16} {count_rows(rows.train):6,} / {count_rows(rows.val):,}{test}{rate}{mix}"
    for domain, index in parts.tests.items():
        samples[domain] = SiteSamples(domain, None, None, class_counts(data, {domain: index}))
        total, rate = len(data.images[domain][1]), format_majority(samples[domain].by_class)
        size = f"all {total:,}" if len(index) == total else f"{len(index):,} of {total:,}"
        yield f"  {domain:16} unseen, {size}{rate}"
    yield from wrap_warnings(site_warnings(samples, data.classes))


def client_samples(parts: Partition, data: Dataset) -> dict[str, SiteSamples]:
    """Count the training and validation images of each client, and their classes."""
    samples = {}
    for name, rows in parts.clients.items():
        train, val = class_counts(data, rows.train), class_counts(data, rows.val)
        both = [in_train + in_val for in_train, in_val in zip(train, val, strict=True)]
        samples[name] = SiteSamples(rows.domain, sum(train), sum(val), both)
    return samples


def format_majority(counts: Sequence[float]) -> str:
    """Format the share of the most frequent class; empty if there are no samples."""
    rate = majority_rate(counts)
    return "" if rate is None else f"   majority class {rate:.0%}"


def write_splits(config: Config, out: str) -> Iterator[str]:
    """Write a split file for each target and seed of a configuration; yield a line for each file."""
    data = build.dataset(config.data)
    cells = {(cell.target, cell.seed): cell for cell in grid(config, data.images)}
    cell_of: dict[Path, Config] = {}
    for cell in cells.values():
        path = replace(cell, train=replace(Train(), split=out)).split_file() or Path(out)
        if path in cell_of:
            raise ConfigError(
                f"{out}: {len(cells)} split files would get the same name; choose one split with "
                f"--set target=... --set seed=..., or name the files '{{target}}-{{seed}}.json'"
            )
        cell_of[path] = cell
    for path, cell in cell_of.items():
        parts = build.partition(cell, data)
        split_file.save(path, parts, data, str(cell.target))
        clients = f"{len(parts.clients)} client{'s' if len(parts.clients) > 1 else ''}"
        yield f"{path}: {clients}, {cell.target} unseen; use it with --set train.split={out}"


def describe_methods(cells: list[Config], data: Dataset | Outline) -> Iterator[str]:
    """Yield the lines of each method: the size of its model, and what leaves each site in a round."""
    prototype = cache(build.network_factory(build.without_weights(cells[0].network)))

    def network(task: Task) -> nn.Module:
        # a copy is faster than initial parameters, which are not needed
        return deepcopy(prototype(task))

    for cell in cells:
        method = build.build_method(cell)
        sources = count_sources(method, cell, data)
        build.ensure_runnable(method, cell, sources)
        assembly = build.assemble(cell, data.classes, _shape(data), sources, "meta", method=method, network=network)
        shared = assembly.shapes()
        title = f"\n{cell.method}: {cell.network} with {describe_parameters(assembly)}"
        if method.pooled:
            yield f"{title}; NOT FEDERATED, a reference:"
            yield "  all images and labels of all sites are pooled in one place before the first round"
            continue
        yield f"{title}; each site sends, at most, in a round:"
        for kind, names in method.sends.items():
            for name, sent in names.items():
                size = tree.size(sent.like(shared, {}))
                yield f"  {name:16} {sent.kind:12} {size:12,} bytes  (in reply to {kind!r})"
        yield from describe_reestimation(assembly)
        yield from describe_features(assembly, data)
        needed = "only weighted sums" if method.linear_aggregation else "the reply of each site"
        yield f"  aggregation: {'linear' if method.linear_aggregation else 'per client'}; the server needs {needed}"
        if guarantee := describe_guarantee(method, cell.train.rounds):
            yield f"  {guarantee}"


def describe_parameters(assembly: build.Assembly) -> str:
    """Return how many parameters the model has, and of a model that is trained in part, how many are trained."""
    trained, frozen = parameter_counts(assembly.nets["model"])
    if not frozen:
        return f"{trained:,} parameters"
    size = tree.size(frozen_part(assembly.nets["model"]))
    return (
        f"{trained:,} trained and {frozen:,} frozen parameters (train.part = {assembly.config.train.part}; the frozen "
        f"part, {size:,} bytes, is in no round)"
    )


def describe_features(assembly: build.Assembly, data: Dataset | Outline) -> Iterator[str]:
    """Yield whether frozen layers are computed once for each image, and how many bytes their outputs need."""
    if reason := why_uncached(assembly):
        yield f"  frozen layers are computed in every round: {reason}"
    elif tail := tail_in(assembly.nets["model"]):
        augment, row = assembly.method.augment, 4 * math.prod(tail.cut.shape)
        row *= 1 + (augment.number if isinstance(augment, CachedCopies) else 0)
        images = sum(len(labels) for _, labels in data.images.values()) if isinstance(data, Dataset) else 0
        total = f", {amount(images * row)} for {images:,} images" if images else ""
        yield f"  frozen layers are computed once: {row:,} bytes an image in the cache{total}"


def describe_reestimation(assembly: build.Assembly) -> Iterator[str]:
    """Yield what leaves a site, and in how many exchanges, if BatchNorm statistics are re-estimated."""
    levels = assembly.levels()
    if levels:
        channels = sum(layer.num_features for layer in tracked_layers(assembly.nets["model"]).values())
        yield f"  {'moments':16} {'statistics':12} {8 * channels:12,} bytes  (in reply to 'statistics')"
        exchanges = f"{len(levels)} exchange{'s' if len(levels) > 1 else ''}"
        yield f"  BatchNorm is re-estimated in {exchanges} after each round that is evaluated"


def count_sources(method: Method, config: Config, data: Dataset | Outline) -> int:
    """Count the sites that a method trains on in a run; for a pooled method, their domains."""
    if isinstance(data, Dataset):
        return build.count_sources(method, build.partition(config, data))
    domains = len(data.domains) - len(unseen_domains(config.target))
    return domains if method.pooled else domains * config.train.clients_per_domain


def check_weights(config: Config, data: Dataset | Outline) -> Iterator[str]:
    """Yield a line if the network's weight file is missing; raise `ConfigError` if it does not fit the network."""
    part, *_ = parse(config.network)
    if part.options.get("weights"):
        try:
            weight_files.read(part.options["weights"])
        except MissingError as error:
            yield str(error)
            return
        network = build.network_factory(config.network)
        try:
            network(Task(data.classes, _shape(data), network))
        finally:
            weight_files.forget()


def _shape(data: Dataset | Outline) -> tuple[int, ...]:
    return data.shape if isinstance(data, Outline) else tuple(next(iter(data.images.values()))[0].shape[1:])
