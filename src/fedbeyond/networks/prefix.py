"""Split a network at the last point before which nothing is trained, so that its outputs there can be computed once.

`torch.fx` records the calls of the modules that are trained in part; a block that is wholly frozen or wholly trained is
one call. What a value is computed from decides whether it is constant for an image: frozen blocks and plain functions
keep it so, trained layers, dropout and random functions do not.
"""

import re
from collections.abc import Callable, Set
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from ..classifier import Classifier
from ..site import forked_rng
from .frozen import Frozen, constants_as_buffers

RANDOM = re.compile(r"rand|dropout|bernoulli|normal_|multinomial|uniform_|exponential_")


class _Tracer(fx.Tracer):
    """Traces one method of a network, through the modules that are frozen in part."""

    def __init__(self, function: str) -> None:
        super().__init__()
        self.traced_func_name, self.proxy_buffer_attributes = function, True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        has_frozen = any(isinstance(part, Frozen) for part in m.modules())
        return not (has_frozen and any(True for _ in m.parameters()))


class Cut(NamedTuple):
    """A network in two: constant outputs for images, and what is computed from them."""

    prefix: fx.Graph
    rest: fx.Graph
    function: str  # of the network, that `rest` ends with
    shape: tuple[int, ...]  # of the outputs of one image


class Tail(Classifier):
    """A network that gets the constant outputs of its frozen first layers instead of images; its names are the same."""

    def __init__(self, net: nn.Module, cut: Cut) -> None:
        nn.Module.__init__(self)
        self._parameters, self._buffers, self._modules = net._parameters, net._buffers, net._modules
        self.__dict__ |= {"inside": (net, cut), "halves": {}}  # not as parts
        self.attentive = getattr(net, "attentive", False)

    @property
    def cut(self) -> Cut:
        """The two halves of the network."""
        return self.__dict__["inside"][1]  # type: ignore[no-any-return]

    @property
    def provides(self) -> Set[str]:
        """What the rest of the network gives: features, and maps if it was cut before them."""
        parts = {"forward": set[str](), "features": {"features"}, "maps": {"features", "maps", "pooled"}}
        return parts[self.cut.function]

    def maps(self, x: Tensor) -> Tensor:
        """Return the last feature maps."""
        return self._rest(x)

    def pooled(self, maps: Tensor) -> Tensor:
        """Return the features that the head receives, given the maps."""
        return self.__dict__["inside"][0].pooled(maps)  # type: ignore[no-any-return]

    def features(self, x: Tensor) -> Tensor:
        """Return the features that the head receives."""
        return self.pooled(self._rest(x)) if self.cut.function == "maps" else self._rest(x)

    def forward(self, x: Tensor) -> Tensor:
        return self._rest(x) if self.cut.function == "forward" else super().forward(x)

    def prefix(self, x: Tensor) -> Tensor:
        """Return the outputs of the frozen first layers for images: the inputs of this network."""
        return self._half(self.cut.prefix)(x)  # type: ignore[no-any-return]

    def _rest(self, x: Tensor) -> Tensor:
        # the layout is that of a network without a cut; a module of your own may use x.view
        maps = x.dim() == 4 and self.cut.function != "forward"
        layout = torch.channels_last if maps else torch.contiguous_format
        # a copy: what writes into its input would change the batch, which the method may use again
        return self._half(self.cut.rest)(x.clone(memory_format=layout))  # type: ignore[no-any-return]

    def _half(self, graph: fx.Graph) -> fx.GraphModule:
        """Return a half of the network as a module; it is made anew after the network was moved."""
        halves: dict[fx.Graph, fx.GraphModule] = self.__dict__["halves"]
        if graph not in halves:
            halves[graph] = fx.GraphModule(self.__dict__["inside"][0], graph)
        return halves[graph]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Tail":
        self.__dict__["halves"].clear()
        return super()._apply(fn, recurse)  # type: ignore[no-any-return, no-untyped-call]


def tail_in(net: nn.Module) -> Tail | None:
    """Return the tail that a network is or has inside; None if it gets images."""
    return next((part for part in net.modules() if isinstance(part, Tail)), None)


def tail_of(net: nn.Module, shape: tuple[int, ...], needs: Set[str]) -> nn.Module:
    """Return the tail of a network; the network itself if it cannot be cut, or the outputs there are not tensors."""
    function = "forward"
    if isinstance(net, Frozen) and net.constants:  # the tail would not have those of the network itself
        return net
    if isinstance(net, Classifier):
        function = "maps" if needs & {"maps", "pooled"} else "features"
        if function == "maps" and "pooled" not in net.provides:
            return net
    cut = _cut(net, shape, function)
    return net if cut is None else Tail(net, cut)


def _cut(net: nn.Module, shape: tuple[int, ...], function: str) -> Cut | None:
    try:
        with constants_as_buffers(net):
            graph = _Tracer(function).trace(net)
    except Exception:  # whatever a module's own code does with values that are not known yet
        return None
    constant = _constant_nodes(graph, net)
    leaving = [node for node in constant if any(user not in constant for user in node.users)]
    if len(leaving) != 1 or leaving[0].op == "placeholder":
        return None
    prefix, rest = _halves(graph, leaving[0])
    device, mode = next(net.parameters()).device, net.training
    with torch.no_grad(), forked_rng():
        net.eval()
        output: Any = fx.GraphModule(net, prefix)(torch.zeros(2, *shape, device=device))
        net.train(mode)
    is_of_images = isinstance(output, Tensor) and output.ndim > 1 and len(output) == 2
    return Cut(prefix, rest, function, tuple(output.shape[1:])) if is_of_images else None


def _constant_nodes(graph: fx.Graph, net: nn.Module) -> dict[fx.Node, None]:
    """Return the values that are always the same for an image, in the order in which they are computed."""
    constant: dict[fx.Node, None] = {}
    for node in graph.nodes:
        if node.op != "output" and all(each in constant for each in node.all_input_nodes) and _keeps(node, net):
            constant[node] = None
    return constant


def _keeps(node: fx.Node, net: nn.Module) -> bool:
    """Return whether a call gives the same for the same inputs in every round."""
    if node.op == "call_module":
        part = net.get_submodule(str(node.target))
        plain = type(part).__module__.startswith("torch.nn.") and not isinstance(part, nn.modules.dropout._DropoutNd)
        return (isinstance(part, Frozen) and part.stays) or (plain and not any(True for _ in part.parameters()))
    if node.op == "get_attr":
        return not any(True for name, _ in net.named_parameters() if name == node.target)
    return not RANDOM.search(str(getattr(node.target, "__name__", node.target)))


def _halves(graph: fx.Graph, node: fx.Node) -> tuple[fx.Graph, fx.Graph]:
    """Return the graph up to a node, and the graph that starts from the value of that node."""
    prefix, rest = fx.Graph(), fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for each in graph.nodes:
        copies[each] = prefix.node_copy(each, lambda old: copies[old])
        if each is node:
            break
    prefix.output(copies[node])
    copied = {node: rest.placeholder("x")}
    needed = _after(graph, node)
    for each in graph.nodes:
        if each in needed:
            copied[each] = rest.node_copy(each, lambda old: copied[old])
    rest.lint()
    return prefix, rest


def _after(graph: fx.Graph, node: fx.Node) -> set[fx.Node]:
    """Return the nodes that the output needs besides `node` and what it is computed from."""
    (output,) = (each for each in graph.nodes if each.op == "output")
    needed, todo = set[fx.Node](), [output]
    while todo:
        each = todo.pop()
        if each is not node and each not in needed:
            needed.add(each)
            todo += each.all_input_nodes
    return needed
