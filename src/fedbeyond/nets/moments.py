"""The moments of what BatchNorm layers are given, measured layer by layer while other sites measure theirs.

A layer can be measured once the statistics of all layers that its input depends on are known. `levels` says which
layers can be measured together, `measured` measures some of them in a pass of its own, and a `Pass` stops at each layer
in turn and waits there for the combined statistics of all sites: it measures a whole network in one forward pass.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Semaphore, Thread, current_thread
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves, tree_map_only

from ..precision import computing
from ..tree import Tree
from . import norms
from .statistics import moments, set_statistics, tracks

Levels = tuple[tuple[str, ...], ...]  # names of layers; those of one level can be measured together
Look = Callable[[str, Tensor], None]  # at a layer's input, before the layer computes


class _Reached(Exception):
    """All that was to be measured is measured; the rest of the pass is not needed."""


def tracked(net: nn.Module) -> dict[str, _BatchNorm]:
    """The BatchNorm layers whose running statistics may change, by name."""
    return {name: layer for name, layer in norms(net) if tracks(layer)}


@contextmanager
def _before(layers: Mapping[str, _BatchNorm], act: Look) -> Iterator[None]:
    """Call `act` with the name of each layer and its input, before the layer computes."""
    hooks = [
        layer.register_forward_pre_hook(lambda layer, given, name=name: act(name, given[0]))
        for name, layer in layers.items()
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def levels(net: nn.Module, shape: Sequence[int]) -> Levels:
    """Sort the BatchNorm layers by what their inputs depend on, for images of a shape; without layers never called.

    One image goes through the network, whose tensors know how many BatchNorm layers lie one behind the other before.
    """
    layers, found = tracked(net.eval()), dict[str, int]()
    if not layers:
        return ()

    def look(name: str, given: Tensor) -> None:
        found[name] = max(found.get(name, 0), depth_of(given))

    def behind(layer: nn.Module, given: Any, output: Tensor) -> Tensor:
        return _Traced.of(output, depth_of(output) + 1)

    hooks = [layer.register_forward_hook(behind) for layer in layers.values()]
    image = torch.zeros(1, *shape, device=next(net.parameters()).device)
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())), _before(layers, look), _eager():
            net(_Traced.of(image, 0))
    finally:
        for hook in hooks:
            hook.remove()
    depths = sorted(set(found.values()))
    return tuple(tuple(name for name in found if found[name] == depth) for depth in depths)


class _Traced(Tensor):
    """A tensor that knows how many BatchNorm layers lie one behind the other before it."""

    depth: int

    @classmethod
    def of(cls, tensor: Tensor, depth: int) -> "_Traced":
        traced = tensor.as_subclass(cls)
        traced.depth = depth
        return traced

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            result = function(*args, **(kwargs or {}))
        depth = depth_of([args, kwargs])
        return tree_map_only(Tensor, lambda tensor: cls.of(tensor, max(depth, depth_of(tensor))), result)


def depth_of(given: Any) -> int:
    """The greatest depth of the tensors in something."""
    return max((leaf.depth for leaf in tree_leaves(given) if isinstance(leaf, _Traced)), default=0)


def _eager() -> AbstractContextManager[Any]:
    """Within the block, compiled networks compute as if they were not: passes stop in the middle of them."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


@torch.no_grad()
def measured(net: nn.Module, x: Tensor, known: Tree, wanted: Sequence[str]) -> Tree:
    """Measure the layers `wanted` on a batch, with the `known` statistics in the layers before them."""
    layers, found = tracked(net.eval()), dict[str, Tree]()
    for name, statistics in known.items():
        set_statistics(layers[name], statistics["mean"], statistics["variance"])

    def look(name: str, given: Tensor) -> None:
        found.setdefault(name, moments(given))
        if len(found) == len(wanted):
            raise _Reached

    with _before({name: layers[name] for name in wanted}, look), computing(x.device.type, net), _eager():
        try:
            net(x)
        except _Reached:
            return {name: found[name] for name in wanted}
    raise ValueError(f"the network does not use {', '.join(name for name in wanted if name not in found)}")


class Pass:
    """A forward pass that stops at every layer whose statistics are not known, and resumes when they are.

    It runs in a thread of its own, which stands still but within `advance`: a call cannot be left and taken up again
    otherwise. Many passes may share a network, if nobody writes other parameters into it in between.
    """

    def __init__(self, net: nn.Module, x: Tensor) -> None:
        self.net, self.x, self.known = net.eval(), x, Tree()
        self.stopped_at, self.over = ("", Tree()), False
        self.error: Exception | None = None
        self._resume, self._stopped = Semaphore(0), Semaphore(0)
        self._thread = Thread(target=self._run, daemon=True)

    def advance(self, known: Tree) -> tuple[str, Tree]:
        """Go on with what is known up to the next layer that is not; its name, and the moments of what it is given."""
        self.known = known
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._resume.release()
        self._stopped.acquire()
        if self.error:
            raise self.error
        return self.stopped_at

    def close(self) -> None:
        """Leave the pass where it is."""
        self.over = True
        if self._thread.ident is not None:
            self._resume.release()
            self._thread.join()

    def _run(self) -> None:
        torch.set_num_threads(torch.get_num_threads())  # a thread begins with as many as there are cores
        layers = tracked(self.net)
        try:
            with torch.no_grad(), _before(layers, self._at), computing(self.x.device.type, self.net), _eager():
                self.net(self.x)
            self.stopped_at = ("", {})
        except _Reached:
            pass
        except Exception as error:  # raised where somebody waits for it
            self.error = error
        self._stopped.release()

    def _at(self, name: str, given: Tensor) -> None:
        if current_thread() is not self._thread:  # another pass through the same network
            return
        if name not in self.known:
            self.stopped_at = (name, moments(given))
            self._stopped.release()
            self._resume.acquire()
        if self.over:
            raise _Reached
        layer = self.net.get_submodule(name)
        assert isinstance(layer, _BatchNorm)
        set_statistics(layer, self.known[name]["mean"], self.known[name]["variance"])
