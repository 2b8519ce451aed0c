"""Three tiny sites and a tiny network, so that checking a law is fast."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .._method import Method
from ..classifier import Classifier, Networks, Task, read
from ..data.partition.pooling import pool
from ..engine.gate import Gate
from ..engine.simulator import Simulator
from ..experiment.build import networks
from ..images import Split
from ..site import Site
from ..spec import POOLED
from ..tree import Tree

SIZES = {"east": 12, "north": 16, "west": 20}
CLASSES = ("red", "green", "blue")


@contextmanager
def one_thread() -> Iterator[None]:
    """Give torch one thread while the block runs: on data this small, several only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def tiny(task: Task) -> Classifier:
    """Build one convolution with BatchNorm, so that there are counters and running statistics."""
    body = nn.Sequential(nn.Conv2d(task.shape[0], 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
    net = Classifier(body, 4, len(task.classes))
    net.stages = ("body.0", "body.2")
    return net


def deeper(task: Task) -> Classifier:
    """Build a network with three BatchNorm layers, of which two are independent, for layer-by-layer measurements."""
    net = Classifier(Deeper(task.shape[0]), 4, len(task.classes))
    net.stages = ("body.first", "body.beside")
    return net


def logits_only(task: Task) -> nn.Module:
    """Build a plain module, of which a method can use only the logits."""
    body = nn.Conv2d(task.shape[0], 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(4, len(task.classes)))


class Deeper(nn.Module):
    """Two parallel convolutions, and a normalisation of their sum."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.beside = nn.Sequential(nn.Conv2d(channels, 4, 1), nn.BatchNorm2d(4))
        self.last = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.last(self.first(x) + self.beside(x)))


TASK = Task(CLASSES, (3, 6, 6), tiny, len(SIZES))
DEEPER = TASK._replace(network=deeper)
LOGITS_ONLY = TASK._replace(network=logits_only)


def domains(sizes: dict[str, int] = SIZES) -> dict[str, dict[str, Split]]:
    """Return images whose colour is their class, with a different brightness at each site."""
    rng = torch.Generator().manual_seed(1)
    data: dict[str, dict[str, Split]] = {}
    for shade, (name, size) in enumerate(sizes.items()):
        y = torch.randint(len(CLASSES), (size + 8,), generator=rng)
        x = torch.rand(size + 8, 3, 6, 6, generator=rng) * 0.3 + 0.1 * shade
        x[torch.arange(len(y)), y] += 0.7
        data[name] = {"train": (x[:size], y[:size]), "val": (x[size:], y[size:])}
    return data


def nets(method: Method, task: Task | None = None) -> Networks:
    """Return the method's networks on the toy task."""
    return networks(method, task or TASK, 0, "cpu")


def shared(method: Method, task: Task | None = None) -> Tree:
    """Return the networks that the server holds, as trees."""
    built = nets(method, task)
    return {name: read(built[name]) for name in method.shared}


def sites(
    method: Method, sizes: dict[str, int] = SIZES, task: Task | None = None, make: type[Site] = Site
) -> list[Site]:
    """Return the toy sites with the method's sampler and augmentation."""
    scratch, data = nets(method, task), domains(sizes)
    settings: dict[str, Any] = {"augment": method.augment, "sampler": method.sampler, "batch_size": 8}
    if method.pooled:
        pooled, settings["origin"] = pool(data)
        data = {POOLED: pooled}
    if method.public:
        x = torch.rand(24, *TASK.shape, generator=torch.Generator().manual_seed(2))
        data = {name: splits | {"public": (x, torch.full((24,), -1))} for name, splits in data.items()}
    return [make(name, splits, scratch, **settings) for name, splits in data.items()]


def gate(method: Method, sizes: dict[str, int] = SIZES, quorum: int | None = None, task: Task | None = None) -> Gate:
    """Return the gate for the toy sites."""
    samples = {POOLED: sum(sizes.values())} if method.pooled else sizes
    return Gate(method.sends, shared(method, task), samples, quorum)


def simulator(method: Method) -> Simulator:
    """Return a simulator of the toy sites."""
    return Simulator(method.client, sites(method))
