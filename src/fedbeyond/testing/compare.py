"""Compare trees, and raise `LawBroken` where they differ."""

import torch
from torch import Tensor

from .. import tree
from ..errors import FederationError
from ..tree import Tree


class LawBroken(AssertionError):
    """A method breaks one of the laws."""


def rejection(error: FederationError) -> str:
    """Say why a method's replies were rejected, with the undeclared names, which results do not hold."""
    return f"its replies were rejected: {error} ({error.__cause__ or 'by the gate'})"


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
