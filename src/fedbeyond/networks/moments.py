"""Measure the moments of the inputs of BatchNorm layers, layer by layer and in step with other sites.

A layer can be measured once the statistics of all layers that its input depends on are known. `levels` computes which
layers can be measured together. `measure_layers` measures some layers in one forward pass. A `Pass` stops at each layer
and waits for the combined statistics of all sites, so it measures a whole network in one forward pass.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from threading import Semaphore, Thread, current_thread
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves, tree_map_only

from ..classifier import attached, batchnorm_layers
from ..site import forked_rng
from ..tree import Tree
from .running_statistics import moments, set_statistics, tracks

Levels = tuple[tuple[str, ...], ...]  # names of layers; those of one level can be measured together


class _Reached(Exception):
    """The rest of the forward pass is not needed."""


def tracked_layers(net: nn.Module) -> dict[str, _BatchNorm]:
    """Return the BatchNorm layers whose running statistics may change, by name."""
    return {name: layer for name, layer in batchnorm_layers(net) if tracks(layer)}


def _before(layers: Mapping[str, _BatchNorm], act: Callable[[str, Tensor], None]) -> ExitStack:
    """Return a context in which `act` gets the name of each layer and its input, before the layer computes."""
    return attached(
        layer.register_forward_pre_hook(lambda layer, inputs, name=name: act(name, inputs[0]))
        for name, layer in layers.items()
    )


@torch.no_grad()
def levels(net: nn.Module, shape: Sequence[int]) -> Levels:
    """Group the BatchNorm layers by depth, for images of a shape; leave out layers that are never called.

    The depth is the number of BatchNorm layers in sequence before a tensor, recorded while one image passes through the
    network. Writes in place can hide a dependency. So the layers of a level are measured both together and one by one;
    if the results differ, each layer gets a level of its own.
    """
    layers, depths = tracked_layers(net.eval()), dict[str, int]()
    if not layers:
        return ()

    def record(name: str, inputs: Tensor) -> None:
        depths.setdefault(name, _depth_of(inputs))

    def deepen(layer: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return _Traced.of(output, _depth_of(output) + 1)

    image = torch.zeros(1, *shape, device=next(net.parameters()).device)
    with forked_rng():
        with attached(layer.register_forward_hook(deepen) for layer in layers.values()), _before(layers, record):
            net(_Traced.of(image, 0))
        order = sorted(depths, key=lambda name: depths[name])  # stable: by depth, then in the order of calls
        grouped = tuple(tuple(n for n in order if depths[n] == depth) for depth in sorted(set(depths.values())))
        together = image.device.type == "meta" or _independent(net, torch.rand(2, *shape).to(image.device), grouped)
    return grouped if together else tuple((name,) for name in depths)


def _independent(net: nn.Module, x: Tensor, grouped: Levels) -> bool:
    """Return whether the layers of each level have equal moments when measured together and one by one."""
    if all(len(level) == 1 for level in grouped):
        return True
    before = {name: layer.state_dict() for name, layer in tracked_layers(net).items()}
    before = {name: {key: value.clone() for key, value in state.items()} for name, state in before.items()}
    known, alone, forward = Tree(), Tree(), Pass(net, x)
    try:
        while (stop := forward.advance(known))[0]:
            name, measured = stop
            alone[name] = measured
            known = known | {name: {"mean": measured["mean"], "variance": measured["deviation"].square()}}
        for index, level in enumerate(grouped):
            earlier = {name: known[name] for names in grouped[:index] for name in names}
            for name, layer in tracked_layers(net).items():  # wrong statistics expose layers that depend on them
                set_statistics(layer, before[name]["running_mean"] + 1, before[name]["running_var"] + 1)
            together = measure_layers(net, x, earlier, level) if len(level) > 1 else {}
            for name in together:
                if not all(torch.allclose(alone[name][key], together[name][key], rtol=1e-3) for key in alone[name]):
                    return False
    finally:
        forward.close()
        for name, layer in tracked_layers(net).items():
            layer.load_state_dict(before[name])
    return True


class _Traced(Tensor):
    """A tensor with the number of BatchNorm layers in sequence before it."""

    depth: int

    @classmethod
    def of(cls, tensor: Tensor, depth: int) -> "_Traced":
        """Return the tensor with a depth."""
        traced = tensor.as_subclass(cls)
        traced.depth = depth
        return traced

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            result = function(*args, **(kwargs or {}))
        depth = _depth_of([args, kwargs])
        return tree_map_only(Tensor, lambda tensor: cls.of(tensor, max(depth, _depth_of(tensor))), result)


def _depth_of(values: Any) -> int:
    """Return the greatest depth of the tensors in nested values."""
    return max((leaf.depth for leaf in tree_leaves(values) if isinstance(leaf, _Traced)), default=0)


@torch.no_grad()
def measure_layers(net: nn.Module, x: Tensor, known: Tree, wanted: Sequence[str]) -> Tree:
    """Measure the moments of the layers `wanted` on a batch, with the `known` statistics in earlier layers."""
    layers, measured = tracked_layers(net.eval()), dict[str, Tree]()
    if unknown := [name for name in (*known, *wanted) if name not in layers]:
        raise ValueError(f"the network has no BatchNorm layer {', '.join(unknown)}; it has {', '.join(layers)}")
    for name, statistics in known.items():
        set_statistics(layers[name], statistics["mean"], statistics["variance"])

    def measure(name: str, inputs: Tensor) -> None:
        measured.setdefault(name, moments(inputs))
        if len(measured) == len(wanted):
            raise _Reached

    with _before({name: layers[name] for name in wanted}, measure):
        try:
            net(x)
        except _Reached:
            return {name: measured[name] for name in wanted}
    raise ValueError(f"the network does not use {', '.join(name for name in wanted if name not in measured)}")


class Pass:
    """A forward pass that stops at every layer whose statistics are not known, and resumes when they are.

    It runs in a thread of its own, because a function call cannot be suspended otherwise. The thread runs only within
    `advance` and `close`. Several passes may share a network if all use the same parameters.
    """

    def __init__(self, net: nn.Module, x: Tensor) -> None:
        self.net, self.x, self.known = net.eval(), x, Tree()
        self.layers = tracked_layers(net)
        self.stopped_at, self.bytes = ("", Tree()), 0
        self.error: BaseException | None = None
        self.over = False
        self._resume, self._stopped = Semaphore(0), Semaphore(0)
        self._thread = Thread(target=self._run, daemon=True)

    def advance(self, known: Tree) -> tuple[str, Tree]:
        """Run to the next layer whose statistics are not known; return its name and the moments of its input.

        After the last layer the name is empty.
        """
        self.known = known
        self._continue()
        if self.error:
            raise self.error
        return self.stopped_at

    def close(self) -> None:
        """Abandon the pass where it is."""
        self.over = True
        if self._thread.is_alive():
            self._continue()
            self._thread.join()

    def _continue(self) -> None:
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._resume.release()
        self._stopped.acquire()

    def _run(self) -> None:
        try:
            torch.set_num_threads(torch.get_num_threads())  # a new thread would use as many as there are cores
            with torch.no_grad(), _before(self.layers, self._stop):
                self.net(self.x)
            self.stopped_at = ("", {})
        except _Reached:
            pass
        except BaseException as error:  # raised by `advance`
            self.error = error
        finally:
            self._stopped.release()

    def _stop(self, name: str, inputs: Tensor) -> None:
        if current_thread() is not self._thread:  # another pass through the same network
            return
        if name not in self.known:
            self.stopped_at, self.bytes = (name, moments(inputs)), inputs.nbytes
            self._stopped.release()
            self._resume.acquire()
        if self.over:
            raise _Reached
        set_statistics(self.layers[name], self.known[name]["mean"], self.known[name]["variance"])
