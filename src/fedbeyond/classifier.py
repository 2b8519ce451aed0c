"""Classifiers as features and a head, and the functions that read a network into a tree and write it back."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from typing import NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle as Hook

from . import timer
from .errors import ConfigError
from .images import Images, Split, pixels
from .tree import Tree, contiguous_copy


class Task(NamedTuple):
    """The learning task: classes, shape of the inputs, and the factory of the network."""

    classes: tuple[str, ...]
    shape: tuple[int, ...]  # (channels, height, width) of images, or (features,) of table rows
    network: Callable[["Task"], nn.Module]
    sources: int = 1  # number of source sites, for networks that classify sites

    def classifier(self) -> "Classifier":
        """Build the network, for a method that needs its features: it declares so in `Method.needs`."""
        return cast(Classifier, self.network(self))


Networks = dict[str, nn.Module]
Net = TypeVar("Net", bound=nn.Module)


PARTS = {  # what a network can give beyond logits; each includes those that INCLUDED lists
    "features": "the features before a linear head",
    "maps": "feature maps",
    "pooled": "feature maps that its head averages",
    "stages": "the maps of a network's early layers",
}
INCLUDED = {"maps": {"features"}, "pooled": {"maps", "features"}}


class Classifier(nn.Module):
    """A body that computes feature maps, and a linear head on their spatial average."""

    attentive = True  # the head acts on the maps linearly, so class activation maps exist
    stages: tuple[str, ...] = ()  # submodules whose output maps still carry style, from shallow to deep

    def __init__(self, body: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(width, classes)

    @property
    def provides(self) -> Set[str]:
        """What the network gives beyond logits: names of `PARTS`."""
        return {"features", "maps", "pooled"} | ({"stages"} if self.stages else set())

    @property
    def cuts(self) -> tuple[str, ...]:
        """Names of submodules at which its blocks end, except the last block; unless it says otherwise, its stages."""
        return self.stages

    def maps(self, x: Tensor) -> Tensor:
        """Return the last feature maps."""
        return self.body(x)  # type: ignore[no-any-return]

    def pooled(self, maps: Tensor) -> Tensor:
        """Return the features that the head receives, given the maps."""
        return maps.mean((2, 3))

    def features(self, x: Tensor) -> Tensor:
        """Return the features that the head receives."""
        return self.pooled(self.maps(x))

    def maps_and_logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the last feature maps and the logits in one forward pass."""
        maps = self.maps(x)
        return maps, self.head(self.pooled(maps))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))  # type: ignore[no-any-return]


def ensure_provides(net: nn.Module, needs: Set[str], user: str, network: str = "") -> None:
    """Raise `ConfigError` if a network does not give what its user, a method or a figure, needs beyond logits."""
    provides: Set[str] = net.provides if isinstance(net, Classifier) else frozenset()
    missing = [part for part in PARTS if part in needs - provides]
    if missing:
        meanings = " and ".join(PARTS[part] for part in missing)
        given = " and ".join(["logits", *(part for part in PARTS if part in provides - {"pooled"})])
        stages = ", stages=[...]" if "stages" in missing else ""
        raise ConfigError(
            f"{user} needs {meanings}, and {network or type(net).__name__} gives only {given}; build your network with "
            f"fedbeyond.networks.classifier(body, head{stages}), use convnet, a ResNet, AlexNet or MobileNetV2, or a "
            "method that needs less (fedbeyond list methods)"
        )


def require_images(task: Task, name: str, instead: str = "mlp") -> None:
    """Raise `ConfigError` if the data are table rows: the network or method `name` needs images."""
    if len(task.shape) != 3:
        raise ConfigError(f"{name} needs images, but these data are rows of {task.shape[0]} features; use {instead}")


def for_images(name: str, networks: Callable[[Task], Networks]) -> Callable[[Task], Networks]:
    """Wrap a network factory so that it raises `ConfigError` before training if the data are not images."""

    def checked(task: Task) -> Networks:
        require_images(task, name, "a method without it")
        return networks(task)

    return checked


def at_stages(net: nn.Module, name: str, act: Callable[[Tensor], Tensor | None], depth: int = 3) -> list[Hook]:
    """Call `act` on the output maps of each of the first `depth` stages; a returned tensor replaces the maps.

    `name` is the method's name, for the error message if the network declares no stages.
    """
    ensure_provides(net, {"stages"}, name)
    stages = cast(Classifier, net).stages[:depth]
    return [net.get_submodule(stage).register_forward_hook(lambda module, inputs, maps: act(maps)) for stage in stages]


def attached(hooks: Iterable[Hook]) -> ExitStack:
    """Return a context at whose end the hooks are removed."""
    context = ExitStack()
    for hook in hooks:
        context.enter_context(hook)
    return context


def classifier(task: Task) -> Networks:
    """Build one network, all that most methods need."""
    return {"model": task.network(task)}


def classifiers(*names: str) -> Callable[[Task], Networks]:
    """Return a function that builds a network for each name: `model` is trained, `guide` holds the received one."""
    return lambda task: {name: task.network(task) for name in names}


def batchnorm_layers(net: nn.Module) -> Iterator[tuple[str, nn.modules.batchnorm._BatchNorm]]:
    """Yield the names and BatchNorm layers of a network, found by type."""
    for name, layer in net.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            yield name, layer


@contextmanager
def statistics_kept(*nets: nn.Module) -> Iterator[None]:
    """Within the block, training does not update the running statistics of `nets`."""
    tracking = [layer for net in nets for _, layer in batchnorm_layers(net) if layer.track_running_stats]
    for layer in tracking:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in tracking:
            layer.track_running_stats = True


def read(net: nn.Module) -> Tree:
    """Copy a network's parameters and buffers into a tree."""
    with timer.section("models in and out"):
        return {
            "params": {name: contiguous_copy(param) for name, param in net.named_parameters()},
            "buffers": {name: contiguous_copy(buffer) for name, buffer in net.named_buffers()},
        }


def shapes_of(net: nn.Module) -> Tree:
    """Return the tree of a network with shapes and dtypes only, on the meta device."""
    return {
        "params": {name: _empty(param) for name, param in net.named_parameters()},
        "buffers": {name: _empty(buffer) for name, buffer in net.named_buffers()},
    }


def _empty(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


@torch.no_grad()
def write(net: Net, state: Tree) -> Net:
    """Copy the parameters and buffers of `state` into a network of the same shape, and return the network."""
    for kind, tensors in (("params", dict(net.named_parameters())), ("buffers", dict(net.named_buffers()))):
        if tensors.keys() != state[kind].keys():
            raise ValueError(f"the network's {kind} differ from the tree's: {tensors.keys() ^ state[kind].keys()}")
        if tensors:
            with timer.section("models in and out"):
                torch._foreach_copy_(list(tensors.values()), [state[kind][name] for name in tensors])
    return net


def call_with(net: nn.Module, params: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return the outputs of a network with other parameters; where parts share one, all get the same other one."""
    other = {id(param): params[name] for name, param in net.named_parameters()}
    every = {
        f"{path}.{key}".lstrip("."): other[id(param)]
        for path, module in net.named_modules()
        for key, param in module._parameters.items()
        if param is not None
    }
    # torch's own search for shared parameters leaves other ones behind in a module that has two names
    return functional_call(net, every, (x,), tie_weights=False)  # type: ignore[no-any-return]


def eval_batch_size(device: str | torch.device) -> int:
    """Return the batch size for evaluation: fits the cache of a CPU, or fills a GPU."""
    return 1024 if torch.device(device).type == "cuda" else 128


@torch.no_grad()
def logits(net: nn.Module, images: Images) -> Tensor:
    """Compute a network's logits for images, batch by batch, in evaluation mode."""
    device = next(net.parameters()).device
    net.eval()
    with timer.section("evaluation"):
        return torch.cat([net(pixels(x.to(device))).cpu() for x in images.split(eval_batch_size(device))])


def measure(net: nn.Module, split: Split) -> dict[str, Tensor]:
    """Return the mean cross-entropy (`loss`) and the accuracy, as scalars."""
    images, labels = split
    outputs = logits(net, images)
    return {"loss": mean_loss(outputs, labels), "accuracy": (outputs.argmax(1) == labels).double().mean().float()}


def mean_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of logits, summed in double precision."""
    return (F.cross_entropy(outputs, labels, reduction="none").double().sum() / len(labels)).float()
