"""Build the dataset, partition, method and networks that a Config describes."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn

from .. import spec, tree
from .._factory import call, spec_of
from .._method import Method
from ..batch import Augment, CachedCopies, chain
from ..classifier import Classifier, Networks, Task, ensure_provides, for_images, read, shapes_of, write
from ..data.datasets.drawing import DOMAINS
from ..data.partition import split_file
from ..data.partition.assignment import Partition
from ..data.partition.pooling import join_splits
from ..data.partition.splits import Rules, divide
from ..engine.gate import Gate
from ..engine.reestimation import levels_of
from ..errors import ConfigError
from ..images import Dataset, Split
from ..networks import PLACES, batchnorm, weights
from ..networks.frozen import frozen_digest
from ..networks.lora import merged
from ..networks.moments import Levels
from ..networks.own import factory_of
from ..networks.part import train_part, why_images
from ..networks.prefix import tail_in
from ..site import derive, forked_rng
from ..spec import unseen_domains
from ..tree import Tree
from . import registry
from .code import registered
from .config import Config, Train

LOADED: WeakValueDictionary[str, Dataset] = WeakValueDictionary()  # datasets that the user has built, by spec


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
        tail = tail_in(self.nets["model"])
        return levels_of(self.method, self.nets["model"], tail.cut.shape if tail else self.task.shape)

    @cached_property
    def frozen(self) -> str:
        """The digest of what `train.part` freezes in the network; empty if all of it is trained."""
        return frozen_digest(self.nets["model"])

    def whole_model(self, model: Tree) -> Tree:
        """Return a model as that of the ordinary network, with what `train.part` froze in it."""
        return merged(write(self.nets["model"], model)) if self.frozen else model

    def whole_network(self, model: Tree) -> nn.Module:
        """Return the ordinary network with a model, to predict with."""
        if not self.frozen:
            return write(self.nets["model"], model).eval()
        config = replace(self.config, train=replace(self.config.train, part=Train.part))
        plain = assemble(config, self.task.classes, self.task.shape, self.task.sources, network=self.task.network)
        return write(plain.nets["model"], self.whole_model(model)).eval()

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
    network: Callable[[Task], nn.Module] | None = None,
) -> Assembly:
    """Build the method, task and networks of a run: for the simulator, a remote server, a site, an export or a plan.

    `sources` is the number of sites that are trained on. A `method` or `network` that the caller has built already is
    used instead of the configured one. On device "meta" the networks have shapes and no numbers.
    """
    method = method or build_method(config)
    task = Task(classes, shape, network or network_factory(config.network), sources)
    return Assembly(config, method, task, networks(method, task, config.seed, device, config.method))


def network_factory(network: str) -> Callable[[Task], nn.Module]:
    """Return the function that builds a network, given its spec.

    A network that is not of fedbeyond is registered as a function of the task, or as one that returns any of what
    `factory_of` accepts. It is built under the run's seed, and tested.
    """
    part = registry.single(network)
    make = registry.find("networks", part.name)
    if part.name in PLACES:
        return registry.make("networks", part)  # type: ignore[no-any-return]
    if "task" in inspect.signature(make).parameters:
        return factory_of(lambda task: call(make, part, task=task), str(part))
    made = call(make, part)
    return factory_of((lambda: call(make, part)) if isinstance(made, nn.Module) else made, str(part))


def without_weights(network: str) -> str:
    """Return a network's spec without its file of pretrained weights."""
    part = registry.single(network)
    return str(part._replace(options={key: value for key, value in part.options.items() if key != "weights"}))


def networks(method: Method, task: Task, seed: int, device: str, name: str = "") -> Networks:
    """Build a method's networks; their initial parameters depend on the seed alone.

    Raise `ConfigError` if the task's network does not give what the method, called `name` in messages, needs.
    """
    build, logits_only = task.network, list[nn.Module]()

    def network(task: Task) -> nn.Module:
        net = build(task)
        ensure_provides(net, method.needs, name or spec_of(method) or "this method", spec_of(build))
        logits_only.extend([] if isinstance(net, Classifier) else [net])
        return net

    task = task._replace(network=network)
    if device == "meta":
        with torch.device("meta"):
            return method.networks(task)
    with forked_rng():
        torch.default_generator.manual_seed(derive(seed, "networks"))  # networks are initialised on the CPU
        try:
            nets = method.networks(task)
        finally:
            weights.forget()
        # faster on CPUs too; a module of the user's own may use x.view, which such tensors do not allow
        layout = {} if logits_only else {"memory_format": torch.channels_last}
        for net in nets.values():
            net.to(device, **layout)  # type: ignore[call-overload]
    return nets


def build_method(config: Config, cached: bool = True) -> Method:
    """Build a run's method under the options of its [train] table; without `cached`, its networks get images."""
    registry.load_plugins(config.plugins)
    optimizer = registry.make_one("optimizers", config.optimizer)
    return with_train_options(registry.build(config.method, optimizer=optimizer), config.train, cached)


def with_train_options(method: Method, train: Train, cached: bool = True) -> Method:
    """Apply the part of the network that is trained, the BatchNorm policy and the image transform to a method."""
    method = batchnorm.POLICIES[train.batchnorm](method)
    part = registry.make_one("parts", train.part)
    if train.transform != "none":
        transform = registry.make_one("transforms", train.transform)
        image_networks = for_images(f"train.transform {train.transform}", method.networks)
        copied = cached and part.cache and part.copies and not why_images(method) and not method.pooled
        augment: Augment = chain(transform, method.augment)
        if copied:
            augment = CachedCopies(part.copies, transform, train.transform)
        method = replace(method, augment=augment, networks=image_networks)
    if train.part == Train.part:
        return method
    return train_part(method, part if cached else part._replace(cache=False))


def site_options(config: Config, method: Method, device: str) -> dict[str, Any]:
    """Return the arguments of a Site besides its name, its data and its networks."""
    train, mixed_precision = config.train, config.train.precision == "bfloat16"
    if mixed_precision and torch.device(device).type != "cuda":
        raise ConfigError(
            f"train.precision = bfloat16 needs a GPU (CUDA), and the device here is {device}; use the device cuda, or "
            "leave the option out"
        )
    options: dict[str, Any] = {"batch_size": train.batch_size, "epochs": train.epochs, "rounds": train.rounds}
    options |= {"schedule": registry.make_one("schedules", train.schedule)}
    options |= {"augment": method.augment, "sampler": method.sampler, "seed": config.seed}
    return options | {"device": device, "mixed_precision": mixed_precision}


def dataset(spelled: str) -> Dataset:
    """Load a dataset by its spec; once for all runs of a process."""
    if (held := LOADED.get(spelled)) is not None:
        return held
    return registry.make_one("datasets", spelled) if registered(("datasets", spelled)) else _dataset(spelled)


@lru_cache(maxsize=2)
def _dataset(spelled: str) -> Dataset:
    if spelled not in registry.known("datasets") and Path(spelled).exists():
        raise ConfigError(f"{spelled} is a path, not the name of a dataset; write data as {spec_of_path(spelled)}")
    return registry.make_one("datasets", spelled)  # type: ignore[no-any-return]


def spec_of_path(path: str) -> str:
    """Return the spec of the dataset that is probably at a path."""
    if path.lower().endswith(".csv"):
        return f"table(path={path}, site=COLUMN, label=COLUMN)"
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    return f"{'npz' if any(folder.glob('*.npz')) else 'folder'}(root={folder})"


def domains(spelled: str) -> tuple[str, ...]:
    """Return the names of a dataset's domains; for the built-in dataset without drawing it, which takes seconds."""
    return tuple(DOMAINS if spec.parse(spelled)[0].name == "styles" else dataset(spelled).images)


def partition(config: Config, domains: Dataset) -> Partition:
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
            'public = "folder(root=data/public)"'
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
