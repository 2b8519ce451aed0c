"""Arithmetic on trees: nested dicts of tensors, the only thing that is stored, sent or averaged."""

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from operator import itemgetter
from typing import Any, TypeVar

import torch
from torch import Tensor

Tree = dict[str, Any]
Node = TypeVar("Node", Tree, Tensor)


def map(function: Callable[..., Any], *nodes: Any) -> Any:
    """Apply `function` to the leaves that stand at the same place in each of `nodes`."""
    first, *others = nodes
    if not isinstance(first, dict):
        return function(*nodes)
    for other in others:
        if first.keys() != other.keys():
            raise ValueError(f"trees differ in their keys: {sorted(first.keys() ^ other.keys())}")
    return {key: map(function, *(node[key] for node in nodes)) for key in first}


def add(a: Node, b: Node) -> Node:
    """a + b, leaf by leaf."""
    return map(torch.add, a, b)  # type: ignore[no-any-return]


def sub(a: Node, b: Node) -> Node:
    """a - b, leaf by leaf."""
    return map(torch.sub, a, b)  # type: ignore[no-any-return]


def scale(factor: float | Tensor, a: Node) -> Node:
    """factor * a, leaf by leaf."""
    return map(lambda leaf: factor * leaf, a)  # type: ignore[no-any-return]


def to(device: str, a: Node) -> Node:
    """The same tree on a device; on its own device it is the tree itself."""
    return map(lambda leaf: leaf.to(device), a)  # type: ignore[no-any-return]


def zeros(a: Node) -> Node:
    """A tree of the same shape, all zero."""
    return map(torch.zeros_like, a)  # type: ignore[no-any-return]


def leaves(a: Any) -> list[Tensor]:
    """The tensors of a tree, in its order."""
    return [leaf for child in a.values() for leaf in leaves(child)] if isinstance(a, dict) else [a]


def dot(a: Node, b: Node) -> Tensor:
    """The sum of the products of all numbers of `a` and `b`."""
    products: list[Tensor] = []
    map(lambda x, y: products.append((x * y).sum()), a, b)
    return torch.stack(products).sum() if products else torch.zeros(())


def size(a: Any) -> int:
    """Bytes that the tensors of a tree take."""
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(a))


def digest(a: Tree) -> bytes:
    """Names a tree by all it holds, in whatever order."""
    told = sha256()
    for path, leaf in sorted(flatten(a).items(), key=itemgetter(0)):
        told.update(f"{path} {leaf.dtype} {tuple(leaf.shape)} ".encode() + leaf.contiguous().numpy().tobytes())
    return told.digest()


def contiguous_copy(tensor: Tensor) -> Tensor:
    """A copy of its own, laid out row by row."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


class Mean:
    """A weighted mean of trees that takes them in one by one; of counters (integers, as BatchNorm has) the largest.

    It moves towards each tree by the tree's share of the weight so far: what is the same in all stays exactly the same.
    """

    def __init__(self, copy: Callable[[Tensor], Tensor] = contiguous_copy) -> None:
        self.copy = copy
        self.result: Any = None
        self.total, self.count = 0.0, 0

    def add(self, node: Any, weight: float) -> None:
        """Take in another tree; it is not kept."""
        self.count += 1
        self.total += weight
        if self.result is None:
            self.result = map(self.copy, node)
            return
        share = weight / self.total if self.total else 0.0
        pairs: list[tuple[Tensor, Tensor]] = []
        map(lambda own, other: pairs.append((own, other)), self.result, node)
        moving = [(own, other) for own, other in pairs if own.is_floating_point()]
        if moving:
            owns, others = zip(*moving, strict=True)
            torch._foreach_lerp_(list(owns), list(others), share)
        for own, other in pairs:
            if not own.is_floating_point():  # the mean of integers is not one
                torch.maximum(own, other, out=own)


def mean(nodes: Iterable[Node], weights: Sequence[float]) -> Node:
    """The weighted mean of trees; of counters the largest."""
    made = Mean()
    for node, weight in zip(nodes, weights, strict=True):
        made.add(node, weight)
    if not made.total > 0:
        raise ValueError(f"a mean needs weights that sum to more than zero, not {list(weights)}")
    return made.result  # type: ignore[no-any-return]


def flatten(a: Tree) -> dict[str, Tensor]:
    """{"a": {"b": x}, "c": {}} -> {"a/b": x, "c/": empty}: one level, as files and wires want it."""
    flat: dict[str, Tensor] = {}

    def visit(node: Any, path: str) -> None:
        if not isinstance(node, dict):
            flat[path] = node
        elif not node:
            flat[f"{path}/"] = torch.empty(0)  # an empty branch is kept
        for key, child in node.items() if isinstance(node, dict) else ():
            if not key or "/" in key:
                raise ValueError(f"a tree's keys are non-empty and without '/', not {key!r}")
            visit(child, f"{path}/{key}" if path else key)

    visit(a, "")
    return flat


def unflatten(flat: dict[str, Tensor]) -> Tree:
    """The inverse of `flatten`."""
    root: Tree = {}
    for path, leaf in flat.items():
        *folders, name = path.split("/")
        node = root
        for folder in filter(None, folders):
            node = node.setdefault(folder, {})
        if name:
            node[name] = leaf
    return root
