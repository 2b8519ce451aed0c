"""The moments of what BatchNorm layers are given, measured layer by layer while other sites measure theirs.

A layer can be measured once the statistics of all layers that its input depends on are known. `levels` says which
layers can be measured together, `measured` measures some of them in a pass of its own, and a `Pass` stops at each layer
in turn and waits there for the combined statistics of all sites: it measures a whole network in one forward pass.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Semaphore, Thread, current_thread
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves, tree_map_only

from .._precision import computing
from ..classifier import norms
from ..tree import Tree
from .statistics import moments, set_statistics, tracks

Levels = tuple[tuple[str, ...], ...]  # names of layers; those of one level can be measured together


class _Reached(Exception):
    """All that was to be measured is measured; the rest of the pass is not needed."""


def tracked(net: nn.Module) -> dict[str, _BatchNorm]:
    """The BatchNorm layers whose running statistics may change, by name."""
    return {name: layer for name, layer in norms(net) if tracks(layer)}


@contextmanager
def _before(layers: Mapping[str, _BatchNorm], act: Callable[[str, Tensor], None]) -> Iterator[None]:
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

    One image goes through the network, whose tensors know how many BatchNorm layers lie one behind the other before
    them. What is written in place is not seen that way: layers that seem to go together are measured together and one
    after the other, and if that differs, all are measured one after the other.
    """
    layers, depths = tracked(net.eval()), dict[str, int]()
    if not layers:
        return ()

    def look(name: str, given: Tensor) -> None:
        depths.setdefault(name, _depth_of(given))

    def behind(layer: nn.Module, given: Any, output: Tensor) -> Tensor:
        return _Traced.of(output, _depth_of(output) + 1)

    hooks = [layer.register_forward_hook(behind) for layer in layers.values()]
    image = torch.zeros(1, *shape, device=next(net.parameters()).device)
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        try:
            with _before(layers, look):
                net(_Traced.of(image, 0))
        finally:
            for hook in hooks:
                hook.remove()
        order = sorted(depths, key=lambda name: depths[name])  # a stable order: by depth, then as they are called
        found = tuple(tuple(n for n in order if depths[n] == depth) for depth in sorted(set(depths.values())))
        together = image.device.type == "meta" or _independent(net, torch.rand(2, *shape).to(image.device), found)
    return found if together else tuple((name,) for name in depths)


def _independent(net: nn.Module, x: Tensor, found: Levels) -> bool:
    """Whether layers of one level have the same moments measured together and one after the other."""
    if all(len(level) == 1 for level in found):
        return True
    before = {name: layer.state_dict() for name, layer in tracked(net).items()}
    before = {name: {key: value.clone() for key, value in state.items()} for name, state in before.items()}
    known, alone, one = Tree(), Tree(), Pass(net, x)
    try:
        while (stop := one.advance(known))[0]:
            alone[stop[0]] = stop[1]
            known = known | {stop[0]: {"mean": stop[1]["mean"], "variance": stop[1]["deviation"].square()}}
        for place, level in enumerate(found):
            earlier = {name: known[name] for names in found[:place] for name in names}
            for name, layer in tracked(net).items():  # whoever depends on a layer that is not yet known, shows it
                set_statistics(layer, before[name]["running_mean"] + 1, before[name]["running_var"] + 1)
            together = measured(net, x, earlier, level) if len(level) > 1 else {}
            for name in together:
                if not all(torch.allclose(alone[name][key], together[name][key], rtol=1e-3) for key in alone[name]):
                    return False
    finally:
        one.close()
        for name, layer in tracked(net).items():
            layer.load_state_dict(before[name])
    return True


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
        depth = _depth_of([args, kwargs])
        return tree_map_only(Tensor, lambda tensor: cls.of(tensor, max(depth, _depth_of(tensor))), result)


def _depth_of(given: Any) -> int:
    """The greatest depth of the tensors in something."""
    return max((leaf.depth for leaf in tree_leaves(given) if isinstance(leaf, _Traced)), default=0)


@torch.no_grad()
def measured(net: nn.Module, x: Tensor, known: Tree, wanted: Sequence[str]) -> Tree:
    """Measure the layers `wanted` on a batch, with the `known` statistics in the layers before them."""
    layers, found = tracked(net.eval()), dict[str, Tree]()
    if strange := [name for name in (*known, *wanted) if name not in layers]:
        raise ValueError(f"the network has no BatchNorm layer {', '.join(strange)}; it has {', '.join(layers)}")
    for name, statistics in known.items():
        set_statistics(layers[name], statistics["mean"], statistics["variance"])

    def look(name: str, given: Tensor) -> None:
        found.setdefault(name, moments(given))
        if len(found) == len(wanted):
            raise _Reached

    with _before({name: layers[name] for name in wanted}, look), computing(x.device.type, net):
        try:
            net(x)
        except _Reached:
            return {name: found[name] for name in wanted}
    raise ValueError(f"the network does not use {', '.join(name for name in wanted if name not in found)}")


class Pass:
    """A forward pass that stops at every layer whose statistics are not known, and resumes when they are.

    It runs in a thread of its own, which stands still except within `advance` and `close`: a call cannot be left and
    taken up again otherwise. Several passes may share a network, if all have the same parameters.
    """

    def __init__(self, net: nn.Module, x: Tensor) -> None:
        self.net, self.x, self.known = net.eval(), x, Tree()
        self.stopped_at, self.bytes = ("", Tree()), 0
        self.error: BaseException | None = None
        self.over = False
        self._resume, self._stopped = Semaphore(0), Semaphore(0)
        self._thread = Thread(target=self._run, daemon=True)

    def advance(self, known: Tree) -> tuple[str, Tree]:
        """Go on with what is known up to the next layer that is not: its name, and the moments of what it is given.

        Behind the last such layer, the name is empty.
        """
        self.known = known
        self._go_on()
        if self.error:
            raise self.error
        return self.stopped_at

    def close(self) -> None:
        """Leave the pass where it is."""
        self.over = True
        if self._thread.is_alive():
            self._go_on()
            self._thread.join()

    def _go_on(self) -> None:
        # what computes differently in the whole process must be as it was while the thread stands still
        with computing(self.x.device.type, self.net):
            if self._thread.ident is None:
                self._thread.start()
            else:
                self._resume.release()
            self._stopped.acquire()

    def _run(self) -> None:
        try:
            torch.set_num_threads(torch.get_num_threads())  # a thread begins with as many as there are cores
            with torch.no_grad(), _before(tracked(self.net), self._stop), computing(self.x.device.type, self.net):
                self.net(self.x)
            self.stopped_at = ("", {})
        except _Reached:
            pass
        except BaseException as error:  # raised where somebody waits for it
            self.error = error
        finally:
            self._stopped.release()

    def _stop(self, name: str, given: Tensor) -> None:
        if current_thread() is not self._thread:  # another pass through the same network
            return
        if name not in self.known:
            self.stopped_at, self.bytes = (name, moments(given)), given.nbytes
            self._stopped.release()
            self._resume.acquire()
        if self.over:
            raise _Reached
        layer = self.net.get_submodule(name)
        assert isinstance(layer, _BatchNorm)
        set_statistics(layer, self.known[name]["mean"], self.known[name]["variance"])
