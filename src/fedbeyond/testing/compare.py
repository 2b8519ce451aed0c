"""Compare trees, and raise `LawBroken` where they differ."""

import torch
from torch import Tensor

from .. import tree
from ..tree import Tree


class LawBroken(AssertionError):
    """A method breaks one of the laws."""


def ensure_equal(got: Tree, want: Tree, complaint: str) -> None:
    """Raise `LawBroken` unless two trees are equal, bit for bit."""
    a, b = tree.flatten(got), tree.flatten(want)
    differing = sorted({*a, *b} - {name for name in a.keys() & b.keys() if torch.equal(a[name], b[name])})
    if differing:
        raise LawBroken(f"{complaint} ({', '.join(differing[:3])})")


def ensure_close(got: Tree, want: Tree, complaint: str) -> None:
    """Raise `LawBroken` unless two trees are equal up to rounding."""

    def compare(a: Tensor, b: Tensor) -> None:
        if not torch.allclose(a, b, rtol=1e-3, atol=1e-4):
            raise LawBroken(complaint)

    tree.map(compare, got, want)
