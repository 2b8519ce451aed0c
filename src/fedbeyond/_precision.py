"""Fewer bits for products: a network may be meant to compute in bfloat16, whatever the method; numbers stay float32.

Torch's autocast does products and convolutions with half the bits, and losses, norms and sums of many in float32 as
before. Parameters, gradients and all that is stored, sent or averaged stay float32.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from . import tree
from .tree import Node

Build = Callable[[Any], dict[str, nn.Module]]  # networks for a task


def halved(networks: Build) -> Build:
    """The same networks, meant to compute in bfloat16."""

    def made(task: Any) -> dict[str, nn.Module]:
        nets = networks(task)
        for net in nets.values():
            net.halved = True  # type: ignore[assignment]
        return nets

    return made


def is_halved(*nets: nn.Module) -> bool:
    """Whether one of the networks is meant to compute in bfloat16."""
    return any(getattr(net, "halved", False) for net in nets)


@contextmanager
def computing(device: str, *nets: nn.Module) -> Iterator[None]:
    """Within the block, networks compute as they are meant to."""
    if not is_halved(*nets):
        yield
        return
    kind = torch.device(device).type
    with _known_instructions(kind), torch.autocast(kind, torch.bfloat16, cache_enabled=False):  # parameters move within
        yield


def in_full(device: str) -> AbstractContextManager[Any]:
    """Within the block, all is in float32 again: images are varied as they would be otherwise."""
    kind = torch.device(device).type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def whole(node: Node) -> Node:
    """The same in float32, where what it holds was computed with fewer bits."""
    return tree.map(_whole, node)  # type: ignore[no-any-return]


def _whole(leaf: Any) -> Any:
    return leaf.float() if leaf.dtype == torch.bfloat16 else leaf


@contextmanager
def _known_instructions(kind: str) -> Iterator[None]:
    """Without oneDNN on a CPU for which it knows no bfloat16: it was seen to end the process all the same."""
    if kind != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        yield
        return
    before = torch.backends.mkldnn.set_flags(False)
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(*before[:1])
