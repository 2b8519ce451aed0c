"""Networks of your own: any module that maps images or rows to logits, or a body and a head that give features too.

A network is built on the CPU and tested on black images or rows of zeros, so that an unsuitable one is reported before
training.
"""

import inspect
from collections.abc import Callable, Sequence, Set
from copy import deepcopy
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .._factory import spec_of, with_spec
from ..classifier import Classifier, Task, attached
from ..errors import ConfigError, FedbeyondError
from ..site import forked_rng
from ..spec import parse
from . import PLACES

Factory = Callable[[Task], nn.Module]
Given = nn.Module | Callable[[], nn.Module] | Factory  # a module, or a function or class that returns one


def factory_of(network: object, spelled: str = "") -> Factory:
    """Return the function from a task to a network, for anything that stands for a network.

    That is a module, a function of the task, or a function or class without required arguments. A module is copied for
    each use: its parameters are the initial ones, whatever the seed. The network is tested whenever it is built.
    `spelled` is its spec, if it has one.
    """
    is_module = isinstance(network, nn.Module)  # whose attributes are the user's
    spelled = spelled or ("" if is_module else spec_of(network))
    if spelled and parse(spelled)[0].name in PLACES:
        return cast(Factory, network)
    if not is_module and getattr(network, "tested", False):
        tested = cast(Factory, network)
        return with_spec(lambda task: tested(task), spelled) if spelled else tested  # no mark on what the user made
    make, name = _maker(network), spelled or _name(network)

    def build(task: Task) -> nn.Module:
        device = torch.get_default_device()  # "meta" if only shapes are wanted
        with torch.device("cpu"):
            return _tested(make(task), task, name).to(device)

    build.tested = True  # type: ignore[attr-defined]
    build.__module__ = str(getattr(network, "__module__", "__main__"))  # of the card of an exported model
    build.__name__ = str(getattr(network, "__name__", "<network>"))
    build.__qualname__ = str(getattr(network, "__qualname__", "<network>"))
    return with_spec(build, spelled)  # type: ignore[no-any-return]


def classifier(
    body: Given, head: nn.Linear | None = None, *, classes: int | None = None, stages: Sequence[str] = ()
) -> Factory:
    """Build a network from a body and a linear head; methods can use its features, and its maps if it has any.

    The body returns maps (N, C, H, W), which are averaged for the head, or features (N, F). Without a `head`, a new one
    gets the width that the body's output has, and `classes` outputs (by default, one for each class of the task).
    `stages` are names of submodules of the body whose output maps still carry style, from shallow to deep.
    """
    if head is not None and not isinstance(head, nn.Linear):
        raise ConfigError(f"the head of a classifier is a torch.nn.Linear or None, and {_name(head)} was given")
    make, name = _maker(body), _name(body)

    def build(task: Task) -> nn.Module:
        module = _module(make(task), task, name)
        found: dict[str, Any] = {}
        hooks = [
            _submodule(module, stage, name).register_forward_hook(
                lambda module, inputs, maps, stage=stage: found.update({stage: maps})
            )
            for stage in stages
        ]
        with attached(hooks), forked_rng():
            output = _forward(module, task, name)
        if not isinstance(output, Tensor) or output.ndim not in (2, 4):
            raise ConfigError(
                f"the body {name} returns {_described(output)}; it must return maps (N, C, H, W) or features (N, F)"
            )
        for stage in stages:
            if getattr(found.get(stage), "ndim", 0) != 4:
                raise ConfigError(f"the stage {stage!r} of {name} returns {_described(found.get(stage))} and no maps")
        width = output.shape[1]
        if head is not None and head.in_features != width:
            raise ConfigError(f"the head takes {head.in_features} features, and the body {name} gives {width}")
        last = deepcopy(head) if head is not None else nn.Linear(width, classes or len(task.classes))
        return Split(module, last, output.ndim == 4, tuple(f"body.{stage}" for stage in stages))

    build.__name__ = name  # for messages
    made = factory_of(build)
    made.__name__ = str(getattr(body, "__name__", "<network>"))  # under which runs are stored
    return made


class Split(Classifier):
    """A body of your own and a linear head, on the body's features or on the average of its maps."""

    def __init__(self, body: nn.Module, head: nn.Linear, spatial: bool, stages: tuple[str, ...]) -> None:
        nn.Module.__init__(self)
        self.body, self.head, self.attentive, self.stages = body, head, spatial, stages

    @property
    def provides(self) -> Set[str]:
        """What the network gives beyond logits; maps only if its body returns them."""
        return super().provides - (set() if self.attentive else {"maps", "pooled"})

    def pooled(self, maps: Tensor) -> Tensor:
        """Return the features that the head receives: the average of the maps, or the body's features as they are."""
        return super().pooled(maps) if self.attentive else maps


def _maker(network: object) -> Callable[[Task], Any]:
    """Return the function that makes a module for a task, which is not tested yet."""
    if isinstance(network, nn.Module):
        return lambda task: network
    if not callable(network):
        raise ConfigError(
            f"a network is a torch.nn.Module or a function that returns one, and {network!r} was given; give a module, "
            "or a function of the task"
        )
    try:
        takes = inspect.signature(network).parameters
    except ValueError:  # a function of C
        takes = {}  # type: ignore[assignment]
    required = [
        name
        for name, each in takes.items()
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if "task" in takes and set(required) <= {"task"}:
        return lambda task: network(task=task)
    if not required:
        return lambda task: network()
    if (
        len(required) == 1
        and not isinstance(network, type)
        and takes[required[0]].kind is not inspect.Parameter.KEYWORD_ONLY
    ):
        return network
    raise ConfigError(
        f"{_name(network)} needs {', '.join(required)}, which nobody gives; give a function of the task, for example "
        f"lambda task: {_name(network)}({', '.join(f'{name}=...' for name in required)})"
    )


def _name(network: object) -> str:
    """Return the name of a network or of the function that builds it, for messages."""
    if isinstance(network, partial):
        return _name(network.func)
    name = getattr(network, "__name__", type(network).__name__)
    return "the network" if name == "<lambda>" else str(name)


def _tested(net: object, task: Task, name: str) -> nn.Module:
    """Return a new network on the CPU; raise `ConfigError` if it does not return logits of the task's classes."""
    module = _module(net, task, name)
    for number in (2, 1):
        with forked_rng():
            outputs = _forward(module, task, name, number)
        wanted = (number, len(task.classes))
        if not isinstance(outputs, Tensor) or outputs.shape != wanted or not outputs.is_floating_point():
            raise ConfigError(
                f"{name} returns {_described(outputs)} for {number} {_inputs(task)}; expected is a tensor {wanted} of "
                f"logits, one for each of {len(task.classes)} classes; change what its forward returns"
            )
        if isinstance(module, Classifier):
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # as in training
    parameters = dict(module.named_parameters())
    if not parameters:
        raise ConfigError(
            f"{name} has no parameters, so that there is nothing to train; give a network with parameters"
        )
    frozen = next((path for path, parameter in parameters.items() if not parameter.requires_grad), None)
    if frozen:
        raise ConfigError(
            f"{name} has a frozen parameter, {frozen}, and methods train all parameters; set requires_grad=True, or "
            "make it a buffer"
        )
    return module.train()


def _module(net: object, task: Task, name: str) -> nn.Module:
    """Return a copy of a module, on the CPU; raise `ConfigError` if it is something else, or has no numbers.

    A function may return the same module each time, and a method may use several networks. Lazy layers get their shapes
    and numbers before the copy.
    """
    if not isinstance(net, nn.Module):
        raise ConfigError(f"{name} returned {_described(net)}, not a torch.nn.Module; return the network")
    try:
        if _is_lazy(net):
            _forward(net.to("cpu"), task, name)
            if _is_lazy(net):
                raise ConfigError(f"{name} has lazy layers that its forward does not use; remove them")
        return deepcopy(net).to("cpu")
    except NotImplementedError:  # tensors on the meta device
        raise ConfigError(f"{name} is on the device meta and has no numbers; build it on the CPU") from None
    except (RuntimeError, TypeError) as error:  # of a tensor that is computed from others, or an open file
        raise ConfigError(f"{name} cannot be copied ({error}); keep only parameters and buffers in it") from error


def _is_lazy(net: nn.Module) -> bool:
    return any(map(is_lazy, (*net.parameters(), *net.buffers())))


@torch.no_grad()
def _forward(net: nn.Module, task: Task, name: str, number: int = 2) -> Any:
    """Return the output for black images or rows of zeros; raise `ConfigError` if the network rejects them."""
    black = -1.0 if len(task.shape) == 3 else 0.0
    try:
        return net.eval()(torch.full((number, *task.shape), black))
    except FedbeyondError:
        raise
    except Exception as error:  # whatever a module raises
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(
            f"{name} cannot take {_inputs(task)} ({reason}); change the network, or the size of the data"
        ) from error


def _submodule(body: nn.Module, stage: str, name: str) -> nn.Module:
    try:
        return body.get_submodule(stage)
    except AttributeError:
        names = ", ".join(path for path, _ in body.named_children())
        raise ConfigError(f"{name} has no submodule {stage!r}; give names of its submodules, such as {names}") from None


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)} of {str(value.dtype).removeprefix('torch.')}"
    return "None" if value is None else f"a {type(value).__name__}"


def _inputs(task: Task) -> str:
    size = " x ".join(map(str, task.shape))
    return f"images of {size}" if len(task.shape) == 3 else f"rows of {size} features"
