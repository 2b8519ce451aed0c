"""Networks as features and a head, and the two functions that turn a network into a tree and back."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Annotated, Literal, NamedTuple, TypeVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle as Hook

from ..errors import ConfigError
from ..memory import copied, room
from ..stopwatch import part
from ..tree import Tree


class Task(NamedTuple):
    """What is to be learnt, and with which kind of classifier."""

    classes: tuple[str, ...]
    shape: tuple[int, ...]  # channels, height and width of images; of tables, how many features
    network: Callable[["Task"], "Classifier"]
    sources: int = 1  # sites that it is learnt from, for networks that tell them apart


Networks = dict[str, nn.Module]
Net = TypeVar("Net", bound=nn.Module)
Norm = Literal["batch", "group"]
GROUPS = 32  # of GroupNorm, at most


class Classifier(nn.Module):
    """A body that turns images into feature maps, and a linear head on their average."""

    attentive = True  # the head weighs the maps themselves, so that it tells where the network looks
    stages: tuple[str, ...] = ()  # parts whose outputs are maps that still carry style, from shallow to deep

    def __init__(self, body: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(width, classes)

    def maps(self, x: Tensor) -> Tensor:
        """The last feature maps, for methods that ask where the network looks."""
        return self.body(x)  # type: ignore[no-any-return]

    def pooled(self, maps: Tensor) -> Tensor:
        """What the head sees of the maps."""
        return maps.mean((2, 3))

    def features(self, x: Tensor) -> Tensor:
        """What the head sees."""
        return self.pooled(self.maps(x))

    def look(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The last feature maps and the scores, of one pass."""
        maps = self.maps(x)
        return maps, self.head(self.pooled(maps))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))  # type: ignore[no-any-return]


def convnet(width: Annotated[int, Field(gt=0)] = 16, norm: Norm = "batch") -> Callable[[Task], Classifier]:
    """Four 3x3 convolutions with BatchNorm or GroupNorm: small enough for a laptop, deep enough to compare methods."""

    def build(task: Task) -> Classifier:
        require_images(task, "convnet")
        channels = (task.shape[0], width, 2 * width, 4 * width, 4 * width)
        body = nn.Sequential()
        for depth, (wide, wider) in enumerate(pairwise(channels)):
            body.append(nn.Conv2d(wide, wider, 3, padding=1, bias=False))
            body.append(nn.BatchNorm2d(wider))
            if depth < 3:
                body.append(nn.MaxPool2d(2, ceil_mode=True))
            body.append(nn.ReLU(inplace=True))  # behind the pooling: the same numbers from a quarter of the places
        net = Classifier(body, channels[-1], len(task.classes))
        net.stages = ("body.3", "body.7", "body.11")
        return with_group_norm(net) if norm == "group" else net

    return build


def require_images(task: Task, name: str, instead: str = "mlp") -> None:
    """Refuse tables, for a network or a method that needs images."""
    if len(task.shape) != 3:
        raise ConfigError(f"{name} is for images, these data are rows of {task.shape[0]} features; take {instead}")


def for_images(name: str, networks: Callable[[Task], Networks]) -> Callable[[Task], Networks]:
    """The same networks, refused where the data are no images: a method says so before anything is trained."""

    def checked(task: Task) -> Networks:
        require_images(task, name, "a method without it")
        return networks(task)

    return checked


def at_stages(net: nn.Module, name: str, act: Callable[[Tensor], Tensor | None], depth: int = 3) -> list[Hook]:
    """Call `act` on the maps that each of the first `depth` stages puts out; what it returns takes their place.

    `name` is the method that wants to, for saying so where a network has no such stages.
    """
    stages = net.stages[:depth] if isinstance(net, Classifier) else ()
    if not stages:
        raise ConfigError(
            f"{name} works on the maps of a network's early layers, and {type(net).__name__.lower()} names none; "
            "take convnet, a ResNet, AlexNet or MobileNetV2"
        )
    return [net.get_submodule(place).register_forward_hook(lambda part, given, maps: act(maps)) for place in stages]


def classifier(task: Task) -> Networks:
    """What most methods need: one classifier."""
    return {"model": task.network(task)}


def norms(net: nn.Module) -> Iterator[tuple[str, nn.modules.batchnorm._BatchNorm]]:
    """The BatchNorm layers of a network, whatever they are called."""
    for name, layer in net.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            yield name, layer


def with_group_norm(net: Net) -> Net:
    """Replace every BatchNorm layer by GroupNorm (Wu, He; ECCV 2018), which keeps no statistics of training images.

    There are 32 groups as in its paper, or fewer where a group would have less than two channels; an odd number of
    channels is one group.
    """
    for name, layer in list(norms(net)):
        channels = layer.num_features
        groups = math.gcd(GROUPS, channels // 2) if channels % 2 == 0 else 1
        net.set_submodule(name, nn.GroupNorm(groups, channels, layer.eps, layer.affine))
    return net


@contextmanager
def resting(*nets: nn.Module) -> Iterator[None]:
    """Networks that train without their running statistics taking note of it."""
    awake = [layer for net in nets for _, layer in norms(net) if layer.track_running_stats]
    for layer in awake:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in awake:
            layer.track_running_stats = True


def guided(task: Task) -> Networks:
    """A classifier, and another of its kind to hold the received model while the first one moves."""
    return {"model": task.network(task), "guide": task.network(task)}


def read(net: nn.Module) -> Tree:
    """A copy of a network's numbers: what is learnt apart from what is counted."""
    with part("models in and out"):
        return {
            "params": {name: copied(param) for name, param in net.named_parameters()},
            "buffers": {name: copied(buffer) for name, buffer in net.named_buffers()},
        }


def take(net: nn.Module) -> Tree:
    """What `read` gives, of a network that is next written before anybody looks at it: its parameters move out.

    The largest go first, each into the room of one before, so that there are never two of the network. Where they were
    it reads not-a-number, and cannot be changed.
    """
    params = dict(net.named_parameters())
    with part("models in and out"), torch.no_grad():
        taken: dict[str, Tensor] = {}
        for name, param in sorted(params.items(), key=lambda item: -item[1].numel()):
            taken[name] = copied(param)
            param.strides = param.stride()  # type: ignore[attr-defined]  # for when it is written
            param.data = torch.full((), torch.nan, dtype=param.dtype, device=param.device).expand(param.shape)
        buffers = {name: copied(buffer) for name, buffer in net.named_buffers()}
    return {"params": {name: taken[name] for name in params}, "buffers": buffers}


def _settle(param: Tensor) -> None:
    """Give a parameter that moved out its room again."""
    if strides := vars(param).pop("strides", None):
        param.data = room(param, strides)


@torch.no_grad()
def write(net: nn.Module, state: Tree) -> nn.Module:
    """Copy the numbers of `state` into a network of the same shape; returns the network."""
    for kind, own in (("params", dict(net.named_parameters())), ("buffers", dict(net.named_buffers()))):
        if own.keys() != state[kind].keys():
            raise ValueError(f"the network's {kind} differ from the tree's: {own.keys() ^ state[kind].keys()}")
        if own:
            with part("models in and out"):
                for tensor in own.values():
                    _settle(tensor)
                torch._foreach_copy_(list(own.values()), [state[kind][name] for name in own])
    return net
