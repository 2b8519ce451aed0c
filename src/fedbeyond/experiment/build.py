"""What a configuration stands for: its data and who holds them, its method under the run's choices, its networks."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from .. import _memory, spec, tree
from .._precision import halved
from ..batch import chain
from ..classifier import Networks, Task, for_images, read
from ..data.datasets.drawing import DOMAINS
from ..data.partition import split_file
from ..data.partition.assignment import Division
from ..data.partition.pooling import together
from ..data.partition.splits import Rules, divide
from ..errors import ConfigError
from ..images import Domains, Split
from ..method import Method
from ..networks import batchnorm
from ..site import derive
from ..spec import unseen_domains
from ..tree import Tree
from . import registry
from .config import Config, Train


@lru_cache(maxsize=2)
def dataset(spelled: str) -> Domains:
    """A dataset by its spelling, read once for all the runs of a process."""
    return registry.make_one("datasets", spelled)  # type: ignore[no-any-return]


def domains(spelled: str) -> tuple[str, ...]:
    """The names of a dataset's domains; those of the built-in one are known before it is drawn, which takes seconds."""
    return tuple(DOMAINS if spec.parse(spelled)[0].name == "styles" else dataset(spelled).images)


def division(config: Config, domains: Domains) -> Division:
    """Who holds what in a run: as its file says, or as its rules make it."""
    path = config.split_file()
    if path is not None:
        return split_file.load(path, domains, config.target)
    return divide(domains, config.target, config.seed, rules(config.train))


def rules(train: Train) -> Rules:
    """How a run shares out images."""
    made = Rules(
        train.validation, train.clients_per_domain, train.label_skew, train.mixing, train.disjoint, train.target_part
    )
    return made._replace(test=train.test)


def method_of(config: Config) -> Method:
    """The method of a run under the run's own choices."""
    registry.load_plugins(config.plugins)
    optimizer = registry.make_one("optimizers", config.optimizer)
    return adapted(registry.build(config.method, optimizer=optimizer), config.train)


def of_a_site(config: Config, method: Method, device: str) -> dict[str, Any]:
    """What a site is told besides its name, its data and its networks."""
    train = config.train
    told: dict[str, Any] = {"batch_size": train.batch_size, "epochs": train.epochs, "rounds": train.rounds}
    told |= {"schedule": registry.make_one("schedules", train.schedule)}
    return told | {"augment": method.augment, "sampler": method.sampler, "seed": config.seed, "device": device}


def adapted(method: Method, train: Train) -> Method:
    """The method under the run's own choices: what becomes of BatchNorm, how networks compute, how images vary."""
    method = batchnorm.POLICIES[train.batchnorm](method)
    if train.precision == "bfloat16":
        method = replace(method, networks=halved(method.networks))
    if train.transform == "none":
        return method
    transform = registry.make_one("transforms", train.transform)
    made = for_images(f"train.transform {train.transform}", method.networks)
    return replace(method, augment=chain(transform, method.augment), networks=made)


def networks(method: Method, task: Task, seed: int, device: str) -> Networks:
    """The method's networks, whose first numbers depend on the seed alone."""
    layout = {"memory_format": torch.channels_last}  # faster on CPUs too
    with torch.random.fork_rng(range(torch.cuda.device_count())), _memory.sparing():  # they stay as long as the run
        torch.default_generator.manual_seed(derive(seed, "networks"))  # networks are made on the CPU
        made = method.networks(task)
        for net in made.values():
            net.to(device, **layout)  # type: ignore[call-overload]
            for param in net.parameters():
                param.data = _memory.room(param, param.stride()).copy_(param.data)
    return made


def beginnings(method: Method, task: Task, seed: int) -> Tree:
    """The networks that the server holds, as they are before the first round."""
    with _memory.sparing():
        nets = networks(method, task, seed, "cpu")
        return {name: read(nets[name]) for name in method.shared}


def outlines(method: Method, nets: Networks) -> Tree:
    """What the networks that the server holds look like, without their numbers."""
    return {name: tree.to("meta", read(nets[name])) for name in method.shared}


def sources(method: Method, divided: Division) -> int:
    """From how many sites a method learns; a pooled one, from how many domains."""
    homes = [holding.domain for holding in divided.clients.values()]
    return len(set(homes)) if method.pooled else len(homes)


def require(method: Method, config: Config, sites: int) -> None:
    """Refuse a setting that cannot give a method what it needs, before anything is trained."""
    if method.privacy:
        method.privacy.epsilon(1)  # a run that cannot say what it promises is of no use
    if sites < method.least:
        raise ConfigError(
            f"{config.method} needs {method.least} {'domains' if method.pooled else 'sites'} or more to learn from, "
            f"and with {config.target} unseen there {'is' if sites == 1 else 'are'} {sites}; leave out fewer domains, "
            "or set train.clients_per_domain"
        )
    if method.public and config.public is None:
        raise ConfigError(
            f"{config.method} needs images without labels that every site may see; name a dataset of them, as in "
            'public = "folder(root=data/public)" (or --set public=...)'
        )


def public(config: Config, shape: tuple[int, ...]) -> Split:
    """The images that every site may see, without labels and without those of a domain that is to stay unseen."""
    assert config.public is not None
    unseen = unseen_domains(config.target)
    shown = {name: split for name, split in dataset(config.public).images.items() if name not in unseen}
    if not shown:
        raise ConfigError(f"public={config.public} has no images but those of {config.target}, which is to be unseen")
    images, labels = together(list(shown.values()))
    if images.shape[1:] != shape:
        given, wanted = (" x ".join(map(str, one)) for one in (images.shape[1:], shape))
        raise ConfigError(
            f"public={config.public} has images of {given}, {config.data} of {wanted}; give both one size"
        )
    return images, torch.full_like(labels, -1)
