"""Build the dataset, partition, method and networks that a Config describes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from .. import spec, tree
from ..batch import chain
from ..classifier import Classifier, Networks, Task, for_images, read, shapes_of
from ..data.datasets.drawing import DOMAINS
from ..data.partition import split_file
from ..data.partition.assignment import Partition
from ..data.partition.pooling import join_splits
from ..data.partition.splits import Rules, divide
from ..engine.gate import Gate
from ..engine.reestimation import levels_of
from ..errors import ConfigError
from ..images import Domains, Split
from ..method import Method
from ..networks import batchnorm, weights
from ..networks.moments import Levels
from ..site import derive, forked_rng
from ..spec import unseen_domains
from ..tree import Tree
from . import registry
from .config import Config, Train


@dataclass(eq=False)
class Assembly:
    """The method of a run, its task and its networks."""

    config: Config
    method: Method
    task: Task
    nets: Networks
    trained: bool = False  # set by whoever trains the networks

    def gate(self, sizes: Mapping[str, int]) -> Gate:
        """Return the gate for clients with these numbers of training images."""
        return Gate(self.method.sends, self.shapes(), sizes, self.config.train.quorum)

    def shapes(self) -> Tree:
        """Return the models that the server holds as trees without numbers."""
        return {name: shapes_of(self.nets[name]) for name in self.method.shared}

    def levels(self) -> Levels:
        """Return the BatchNorm layers that are re-estimated before models are evaluated; empty if none are."""
        return levels_of(self.method, self.nets["model"], self.task.shape)

    def initial_models(self) -> Tree:
        """Return the models that the server starts with; the networks are built again if they have been trained."""
        nets = networks(self.method, self.task, self.config.seed, "cpu") if self.trained else self.nets
        return {name: tree.to("cpu", read(nets[name])) for name in self.method.shared}


def assemble(
    config: Config,
    classes: tuple[str, ...],
    shape: tuple[int, ...],
    sources: int,
    device: str = "cpu",
    *,
    method: Method | None = None,
    network: Callable[[Task], Classifier] | None = None,
) -> Assembly:
    """Build the method, task and networks of a run: for the simulator, a remote server, a site, an export or a plan.

    `sources` is the number of sites that are trained on. A `method` or `network` that the caller has built already is
    used instead of the configured one. On device "meta" the networks have shapes and no numbers.
    """
    method = method or build_method(config)
    task = Task(classes, shape, network or registry.make_one("networks", config.network), sources)
    return Assembly(config, method, task, networks(method, task, config.seed, device))


def without_weights(network: str) -> str:
    """Return a network's spec without its file of pretrained weights."""
    part = registry.single(network)
    return str(part._replace(options={key: value for key, value in part.options.items() if key != "weights"}))


def networks(method: Method, task: Task, seed: int, device: str) -> Networks:
    """Build a method's networks; their initial parameters depend on the seed alone."""
    if device == "meta":
        with torch.device("meta"):
            return method.networks(task)
    layout = {"memory_format": torch.channels_last}  # faster on CPUs too
    with forked_rng():
        torch.default_generator.manual_seed(derive(seed, "networks"))  # networks are initialised on the CPU
        try:
            nets = method.networks(task)
        finally:
            weights.forget()
        for net in nets.values():
            net.to(device, **layout)  # type: ignore[call-overload]
    return nets


def build_method(config: Config) -> Method:
    """Build a run's method under the options of its [train] table."""
    registry.load_plugins(config.plugins)
    optimizer = registry.make_one("optimizers", config.optimizer)
    return with_train_options(registry.build(config.method, optimizer=optimizer), config.train)


def with_train_options(method: Method, train: Train) -> Method:
    """Apply the run's BatchNorm policy and image transform to a method."""
    method = batchnorm.POLICIES[train.batchnorm](method)
    if train.transform == "none":
        return method
    transform = registry.make_one("transforms", train.transform)
    image_networks = for_images(f"train.transform {train.transform}", method.networks)
    return replace(method, augment=chain(transform, method.augment), networks=image_networks)


def site_options(config: Config, method: Method, device: str) -> dict[str, Any]:
    """Return the arguments of a Site besides its name, its data and its networks."""
    train, mixed_precision = config.train, config.train.precision == "bfloat16"
    if mixed_precision and torch.device(device).type != "cuda":
        raise ConfigError(
            f"train.precision = bfloat16 needs a GPU (CUDA), and the device here is {device}; use --device cuda, or "
            "leave the option out"
        )
    options: dict[str, Any] = {"batch_size": train.batch_size, "epochs": train.epochs, "rounds": train.rounds}
    options |= {"schedule": registry.make_one("schedules", train.schedule)}
    options |= {"augment": method.augment, "sampler": method.sampler, "seed": config.seed}
    return options | {"device": device, "mixed_precision": mixed_precision}


@lru_cache(maxsize=2)
def dataset(spelled: str) -> Domains:
    """Load a dataset by its spec; once for all runs of a process."""
    return registry.make_one("datasets", spelled)  # type: ignore[no-any-return]


def domains(spelled: str) -> tuple[str, ...]:
    """Return the names of a dataset's domains; for the built-in dataset without drawing it, which takes seconds."""
    return tuple(DOMAINS if spec.parse(spelled)[0].name == "styles" else dataset(spelled).images)


def partition(config: Config, domains: Domains) -> Partition:
    """Partition a dataset into clients and unseen domains: by the run's split file, or by its rules."""
    path = config.split_file()
    if path is not None:
        return split_file.load(path, domains, config.target)
    return divide(domains, config.target, config.seed, rules(config.train))


def rules(train: Train) -> Rules:
    """Return the partition rules of a run."""
    shared = Rules(
        train.validation, train.clients_per_domain, train.label_skew, train.mixing, train.disjoint, train.target_part
    )
    return shared._replace(test=train.test)


def count_sources(method: Method, partition: Partition) -> int:
    """Count the clients that a method trains on; for a pooled method, their domains."""
    client_domains = [holding.domain for holding in partition.clients.values()]
    return len(set(client_domains)) if method.pooled else len(client_domains)


def ensure_runnable(method: Method, config: Config, sites: int) -> None:
    """Raise `ConfigError` if a method cannot run in this setting, before anything is trained."""
    if method.privacy:
        method.privacy.epsilon(1)  # raises if the accountant is not installed
    if sites < method.min_clients:
        raise ConfigError(
            f"{config.method} needs at least {method.min_clients} {'domains' if method.pooled else 'sites'} to train "
            f"on; with {config.target} unseen there {'is' if sites == 1 else 'are'} {sites}. Leave out fewer domains, "
            "or set train.clients_per_domain"
        )
    participants = min(sites, config.train.clients_per_round or sites)
    if not method.pooled and (config.train.quorum or 0) > participants:
        raise ConfigError(
            f"train.quorum = {config.train.quorum} replies are needed, but only {participants} sites take part in a "
            "round; lower train.quorum, or leave it out"
        )
    if method.public and config.public is None:
        raise ConfigError(
            f"{config.method} needs unlabelled images that every site may use; name a dataset of them, as in "
            'public = "folder(root=data/public)" (or --set public=...)'
        )


def public(config: Config, shape: tuple[int, ...]) -> Split:
    """Load the public images: unlabelled, and without those of unseen domains."""
    assert config.public is not None
    unseen = unseen_domains(config.target)
    splits = {name: split for name, split in dataset(config.public).images.items() if name not in unseen}
    if not splits:
        raise ConfigError(f"public={config.public} has only images of {config.target}, which must stay unseen")
    images, labels = join_splits(list(splits.values()))
    if images.shape[1:] != shape:
        given, wanted = (" x ".join(map(str, one)) for one in (images.shape[1:], shape))
        raise ConfigError(
            f"public={config.public} has images of {given}, {config.data} of {wanted}; give both the same size"
        )
    return images, torch.full_like(labels, -1)
