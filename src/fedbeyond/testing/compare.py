"""Compare trees; what differs breaks a law."""

import torch
from torch import Tensor

from .. import tree
from ..tree import Tree


class LawBroken(AssertionError):
    """A method does what no method may do."""


def ensure_equal(got: Tree, want: Tree, complaint: str) -> None:
    """Raise `LawBroken` unless two trees are equal, bit for bit."""
    a, b = tree.flatten(got), tree.flatten(want)
    differing = sorted({*a, *b} - {name for name in a.keys() & b.keys() if torch.equal(a[name], b[name])})
    if differing:
        raise LawBroken(f"{complaint} ({', '.join(differing[:3])})")


def ensure_close(got: Tree, want: Tree, complaint: str) -> None:
    """Raise `LawBroken` unless two trees are equal but for rounding."""

    def compare(a: Tensor, b: Tensor) -> None:
        if not torch.allclose(a, b, rtol=1e-3, atol=1e-4):
            raise LawBroken(complaint)

    tree.map(compare, got, want)
