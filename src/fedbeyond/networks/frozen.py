"""Freeze layers of a network: their numbers become constants, which are neither parameters nor buffers.

So what reads a network into a tree, sends, averages, clips or stores it sees only what is trained, and no method has to
know. A frozen layer is of a subclass of its class; its constants follow the network to a device. Where nothing of a
block is trained, the block stays in evaluation mode: BatchNorm uses its running statistics, and nothing is dropped out.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from .. import tree
from ..errors import ConfigError
from ..tree import Tree


class Frozen(nn.Module):
    """A layer with constants instead of parameters and buffers; it precedes the layer's own class."""

    constants: dict[str, Tensor]  # one dict for the same layer of several networks, which thus share memory
    frozen_parameters: frozenset[str]  # names of constants that were parameters
    stays: bool  # in evaluation mode

    def __getattr__(self, name: str) -> Any:
        constants = self.__dict__.get("constants", {})
        return constants[name] if name in constants else super().__getattr__(name)

    def train(self, mode: bool = True) -> "Frozen":
        return super().train(mode and not self.stays)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Frozen":
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, tensor in self.constants.items():
            self.constants[name] = fn(tensor)
        return self


def freeze(net: nn.Module, trained: Iterable[nn.Module]) -> None:
    """Turn everything outside the modules `trained` into constants; a tensor that one of them shares stays."""
    inside = {id(part) for one in trained for part in one.modules()}
    kept = {id(tensor) for part in net.modules() if id(part) in inside for tensor in _own(part).values()}
    for part in list(net.modules()):
        constants = {name: tensor.detach() for name, tensor in _own(part).items() if id(tensor) not in kept}
        if constants:
            parameters = frozenset(constants.keys() & part._parameters.keys())
            _subclass(part, constants, parameters)
            for name in constants:
                (part._parameters if name in parameters else part._buffers).pop(name)
    for block in _untrained_blocks(net, inside):
        _subclass(block)
        block.stays = True  # type: ignore[assignment]
        block.eval()
        for part in block.modules():
            part.frozen = True  # type: ignore[assignment]  # re-estimation skips such BatchNorm layers


def _own(part: nn.Module) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in (*part._parameters.items(), *part._buffers.items()) if tensor is not None}


def _subclass(part: nn.Module, constants: dict[str, Tensor] | None = None, parameters: Iterable[str] = ()) -> None:
    """Make a module one of a frozen subclass, once."""
    if isinstance(part, Frozen):
        return
    kind = type(part)
    part.__class__ = type(kind.__name__, (Frozen, kind), {"__module__": kind.__module__})
    part.__dict__ |= {"constants": constants or {}, "frozen_parameters": frozenset(parameters), "stays": False}


def _untrained_blocks(part: nn.Module, inside: set[int]) -> Iterator[nn.Module]:
    """Yield the largest modules that have constants and nothing that is trained."""
    if id(part) in inside:
        return
    has_constants = any(isinstance(each, Frozen) for each in part.modules())
    if has_constants and not any(id(each) in inside for each in part.modules()):
        yield part
    elif has_constants:
        for child in part.children():
            yield from _untrained_blocks(child, inside)


def frozen_layers(net: nn.Module) -> Iterator[tuple[str, Frozen]]:
    """Yield the names and layers with constants."""
    for path, part in net.named_modules():
        if isinstance(part, Frozen) and part.constants:
            yield path, part


def frozen_part(net: nn.Module) -> Tree:
    """Return the constants of a network as a flat tree of their names; the tensors are not copied."""
    return {
        f"{path}.{name}".lstrip("."): t for path, layer in frozen_layers(net) for name, t in layer.constants.items()
    }


def parameter_counts(net: nn.Module) -> tuple[int, int]:
    """Count the parameters of a network that are trained, and those that are frozen."""
    constants = [layer.constants[name] for _, layer in frozen_layers(net) for name in layer.frozen_parameters]
    return tuple(sum(tensor.numel() for tensor in part) for part in (net.parameters(), constants))  # type: ignore[return-value]


def frozen_digest(net: nn.Module) -> str:
    """Return the SHA-256 digest of what is frozen in a network; empty if nothing is."""
    constants = frozen_part(net)
    return tree.digest(tree.to("cpu", constants)).hex() if constants else ""


@contextmanager
def constants_as_buffers(net: nn.Module) -> Iterator[None]:
    """Within the block, the constants of a network are buffers, as code that inspects networks expects."""
    layers = [layer for _, layer in frozen_layers(net)]
    held = [layer.constants for layer in layers]
    for layer in layers:
        layer._buffers |= layer.constants
        layer.__dict__["constants"] = {}
    try:
        yield
    finally:
        for layer, constants in zip(layers, held, strict=True):
            layer.__dict__["constants"] = constants
            for name in constants:
                del layer._buffers[name]


def share(net: nn.Module, other: nn.Module) -> None:
    """Let a network use the constants of another one of the same form, in the same memory."""
    theirs = dict(frozen_layers(other))
    for path, layer in frozen_layers(net):
        if path not in theirs or _shapes(layer.constants) != _shapes(theirs[path].constants):
            raise ConfigError(
                f"the networks of this method differ in their frozen layer {path}; train all of the network "
                "(train.part = 'all'), or use another method"
            )
        layer.__dict__["constants"] = theirs[path].constants


def install(net: nn.Module, constants: Tree) -> None:
    """Copy constants, by name, into a network; `ValueError` if their names or shapes are others."""
    if _shapes(constants) != _shapes(frozen_part(net)):
        raise ValueError("these numbers are not those of the network's frozen part: names, shapes or types differ")
    for name, tensor in frozen_part(net).items():
        tensor.copy_(constants[name])


def _shapes(constants: Tree) -> dict[str, Any]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in constants.items()}
