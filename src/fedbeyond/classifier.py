"""Networks as features and a head, and the two functions that turn a network into a tree and back."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle as Hook

from ._memory import copied, room
from ._precision import computing, whole
from .errors import ConfigError
from .images import Images, Split, pixels
from .timer import part
from .tree import Tree


class Task(NamedTuple):
    """What is to be learnt, and with which kind of classifier."""

    classes: tuple[str, ...]
    shape: tuple[int, ...]  # channels, height and width of images; of tables, how many features
    network: Callable[["Task"], "Classifier"]
    sources: int = 1  # sites that it is learnt from, for networks that tell them apart


Networks = dict[str, nn.Module]
Net = TypeVar("Net", bound=nn.Module)


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


def at_once(device: str | torch.device) -> int:
    """How many images to look at in one step: what the cache of a CPU holds, or what fills a GPU."""
    return 1024 if torch.device(device).type == "cuda" else 128


@torch.no_grad()
def scores(net: nn.Module, images: Images) -> Tensor:
    """What a network says of images, before softmax; read a batch at a time."""
    device = next(net.parameters()).device
    net.eval()
    with part("evaluation"), computing(device.type, net):
        return torch.cat([whole(net(pixels(x.to(device)))).cpu() for x in images.split(at_once(device))])


def measure(net: nn.Module, split: Split) -> dict[str, Tensor]:
    """Mean cross-entropy and the share of right answers, as scalars."""
    images, labels = split
    said = scores(net, images)
    return {"loss": mean_loss(said, labels), "accuracy": (said.argmax(1) == labels).double().mean().float()}


def mean_loss(said: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy, summed in doubles."""
    return (F.cross_entropy(said, labels, reduction="none").double().sum() / len(labels)).float()
