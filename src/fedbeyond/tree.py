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
    """Apply `function` to the leaves at the same path in each of `nodes`, and return the tree of results."""
    first, *others = nodes
    if not isinstance(first, dict):
        return function(*nodes)
    for other in others:
        if first.keys() != other.keys():
            raise ValueError(f"trees differ in their keys: {sorted(first.keys() ^ other.keys())}")
    return {key: map(function, *(node[key] for node in nodes)) for key in first}


def add(a: Node, b: Node) -> Node:
    """Return a + b, leaf by leaf."""
    return map(torch.add, a, b)  # type: ignore[no-any-return]


def sub(a: Node, b: Node) -> Node:
    """Return a - b, leaf by leaf."""
    return map(torch.sub, a, b)  # type: ignore[no-any-return]


def scale(factor: float | Tensor, a: Node) -> Node:
    """Return factor * a, leaf by leaf."""
    return map(lambda leaf: factor * leaf, a)  # type: ignore[no-any-return]


def to(device: str, a: Node) -> Node:
    """Return the tree on `device`; leaves that are already there are not copied."""
    return map(lambda leaf: leaf.to(device), a)  # type: ignore[no-any-return]


def zeros(a: Node) -> Node:
    """Return a tree of zeros with the same keys, shapes and dtypes."""
    return map(torch.zeros_like, a)  # type: ignore[no-any-return]


def leaves(a: Any) -> list[Tensor]:
    """Return the tensors of a tree, in the order of its keys."""
    return [leaf for child in a.values() for leaf in leaves(child)] if isinstance(a, dict) else [a]


def dot(a: Node, b: Node) -> Tensor:
    """Return the inner product of two trees: the sum over all leaves of `a * b`."""
    products: list[Tensor] = []
    map(lambda x, y: products.append((x * y).sum()), a, b)
    return torch.stack(products).sum() if products else torch.zeros(())


def size(a: Any) -> int:
    """Return the size of all tensors of a tree in bytes."""
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(a))


def digest(a: Tree) -> bytes:
    """Return a SHA-256 digest of paths, dtypes, shapes and values; the order of keys does not matter."""
    checksum = sha256()
    for path, leaf in sorted(flatten(a).items(), key=itemgetter(0)):
        checksum.update(f"{path} {leaf.dtype} {tuple(leaf.shape)} ".encode() + leaf.contiguous().numpy().tobytes())
    return checksum.digest()


def contiguous_copy(tensor: Tensor) -> Tensor:
    """Return a detached copy in contiguous (row-major) layout."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


class Mean:
    """A running weighted mean of trees; integer leaves (BatchNorm counters) get the maximum instead.

    Each new tree moves the result by its share of the total weight so far (lerp), so leaves that are equal in all trees
    stay bitwise equal.
    """

    def __init__(self) -> None:
        self.result: Any = None
        self.total, self.count = 0.0, 0

    def add(self, node: Any, weight: float) -> None:
        """Update the mean with another tree; no reference to the tree is kept."""
        self.count += 1
        self.total += weight
        if self.result is None:
            self.result = map(contiguous_copy, node)
            return
        share = weight / self.total if self.total else 0.0
        pairs: list[tuple[Tensor, Tensor]] = []
        map(lambda current, other: pairs.append((current, other)), self.result, node)
        floating = [(current, other) for current, other in pairs if current.is_floating_point()]
        if floating:
            currents, others = zip(*floating, strict=True)
            torch._foreach_lerp_(list(currents), list(others), share)
        for current, other in pairs:
            if not current.is_floating_point():  # the mean of integers is not an integer
                torch.maximum(current, other, out=current)


def mean(nodes: Iterable[Node], weights: Sequence[float]) -> Node:
    """Return the weighted mean of trees; integer leaves get the maximum instead."""
    running = Mean()
    for node, weight in zip(nodes, weights, strict=True):
        running.add(node, weight)
    if not running.total > 0:
        raise ValueError(f"a mean needs weights with a positive sum, got {list(weights)}")
    return running.result  # type: ignore[no-any-return]


def flatten(a: Tree) -> dict[str, Tensor]:
    """Flatten to one level for files and messages: {"a": {"b": x}, "c": {}} -> {"a/b": x, "c/": empty}."""
    flat: dict[str, Tensor] = {}
    _flatten_into(flat, a, "")
    return flat


def _flatten_into(flat: dict[str, Tensor], node: Any, path: str) -> None:
    """Add the leaves below a path; no inner function, which would keep them alive until garbage is collected."""
    if not isinstance(node, dict):
        flat[path] = node
    elif not node:
        flat[f"{path}/"] = torch.empty(0)  # marks an empty branch, so that `unflatten` restores it
    for key, child in node.items() if isinstance(node, dict) else ():
        if not key or "/" in key:
            raise ValueError(f"keys of a tree must be non-empty and must not contain '/', got {key!r}")
        _flatten_into(flat, child, f"{path}/{key}" if path else key)


def unflatten(flat: dict[str, Tensor]) -> Tree:
    """Invert `flatten`."""
    root: Tree = {}
    for path, leaf in flat.items():
        *folders, name = path.split("/")
        node = root
        for folder in filter(None, folders):
            node = node.setdefault(folder, {})
        if name:
            node[name] = leaf
    return root
