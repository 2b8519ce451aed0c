"""Prepare a run from its configuration: sites with their data, engine, gate, evaluator. Nothing is trained."""

import logging
from collections.abc import Mapping
from typing import NamedTuple

from .. import timer
from .._method import Method
from ..classifier import Networks
from ..data.partition.assignment import build_splits, local_tests
from ..data.partition.pooling import pool
from ..data.partition.splits import source_domains as ensure_target
from ..engine.gate import Gate
from ..engine.protocol import Engine
from ..engine.simulator import Simulator
from ..engine.workers import Workers
from ..errors import DataError
from ..evaluation.evaluators import Evaluator, evaluation_splits, local_evaluator
from ..images import Split
from ..networks.moments import Levels
from ..site import Site
from ..spec import POOLED
from .build import (
    Assembly,
    assemble,
    build_method,
    count_sources,
    dataset,
    domains,
    ensure_runnable,
    partition,
    public,
    site_options,
)
from .config import Config
from .outputs import outputs_of, why_uncached


class Experiment(NamedTuple):
    """Everything that a run needs, built from its configuration."""

    assembly: Assembly
    engine: Engine
    gate: Gate
    evaluator: Evaluator
    levels: Levels = ()  # BatchNorm layers whose statistics are re-estimated before models are evaluated
    validation: Mapping[str, Split] = {}  # the validation split of each client; empty if the data are elsewhere
    unseen: Mapping[str, Split] = {}  # the splits of the unseen domains, likewise
    local_tests: Mapping[str, Split] = {}  # the in-domain test split of each client that has one
    client_domains: Mapping[str, str] = {}  # the domain of each client
    device: str = "cpu"

    @property
    def config(self) -> Config:
        return self.assembly.config

    @property
    def method(self) -> Method:
        return self.assembly.method

    @property
    def nets(self) -> Networks:
        return self.assembly.nets


def prepare(config: Config, device: str = "cpu", workers: int = 1, cached: bool = True) -> Experiment:
    """Build a run in the simulator, or with several `workers` in processes; train nothing.

    Without `cached`, networks and splits are those of images, whatever `train.part` would compute once: to use a model.
    """
    method = build_method(config, cached)
    own_device = "cpu" if workers > 1 else device  # each worker uses a device of its own; this process must not
    options = site_options(config, method, device) | {"device": own_device}
    ensure_target(sorted(domains(config.data)), config.target)  # fail on an unknown target before loading data
    with timer.section("data"):
        data = dataset(config.data)
        if len(data.classes) < 2:
            raise DataError(f"{config.data} has one class ({data.classes[0]}); a classifier needs at least two")
        parts = partition(config, data)
        splits, unseen = build_splits(data, parts)
    client_domains = {name: holding.domain for name, holding in parts.clients.items()}
    sources = count_sources(method, parts)
    ensure_runnable(method, config, sources)
    shape = tuple(next(iter(unseen.values()))[0].shape[1:])
    assembly = assemble(config, data.classes, shape, sources, own_device, method=method)
    tests = local_tests(data, parts)
    outputs = outputs_of(method, assembly.nets["model"], assembly.frozen, own_device)
    if outputs:
        splits, unseen, tests = outputs.of_all(splits, unseen, tests)
    elif cached and (reason := why_uncached(assembly)):
        logging.getLogger("fedbeyond").warning(
            "%s: frozen layers are computed in every round: %s", config.method, reason
        )
    validation = {name: split["val"] for name, split in splits.items()}
    if method.pooled:
        pooled, origin = pool(splits, client_domains)
        splits, options = {POOLED: pooled}, options | {"origin": origin}
    if method.public:
        images = outputs.plain.of(public(config, shape)) if outputs else public(config, shape)
        splits = {name: split | {"public": images} for name, split in splits.items()}
    sites = [Site(name, split, assembly.nets, **options) for name, split in splits.items()]
    evaluated = evaluation_splits(validation, unseen, tests)
    engine: Simulator | Workers
    if workers > 1:
        engine = Workers(method.client, sites, workers, evaluated, device)
        evaluator = engine.evaluator(client_domains)
    else:
        engine = Simulator(method.client, sites)
        evaluator = local_evaluator(assembly.nets["model"], evaluated, client_domains)
    return Experiment(
        assembly,
        engine,
        assembly.gate(engine.sizes),
        evaluator,
        assembly.levels(),
        validation=validation,
        unseen=unseen,
        local_tests=tests,
        client_domains=client_domains,
        device=device,
    )
