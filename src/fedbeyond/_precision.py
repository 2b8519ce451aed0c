"""Mixed precision: networks marked `autocast` compute in bfloat16, with any method.

Torch's autocast computes matrix products and convolutions in bfloat16; losses, norms and long sums stay in float32.
Parameters, gradients and everything that is stored, sent or averaged stay float32.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from . import tree
from .tree import Node

Build = Callable[[Any], dict[str, nn.Module]]  # networks for a task


def in_bfloat16(networks: Build) -> Build:
    """Wrap a network factory so that its networks compute in bfloat16."""

    def build(task: Any) -> dict[str, nn.Module]:
        nets = networks(task)
        for net in nets.values():
            net.autocast = True  # type: ignore[assignment]
        return nets

    return build


def uses_bfloat16(*nets: nn.Module) -> bool:
    """Return whether one of the networks computes in bfloat16."""
    return any(getattr(net, "autocast", False) for net in nets)


@contextmanager
def autocast_for(device: str, *nets: nn.Module) -> Iterator[None]:
    """Within the block, use autocast with bfloat16 if one of the networks is marked for it."""
    if not uses_bfloat16(*nets):
        yield
        return
    kind = torch.device(device).type
    with (
        _known_instructions(kind),
        torch.autocast(kind, torch.bfloat16, cache_enabled=False),
    ):  # no cache: parameters change inside
        yield


def autocast_off(device: str) -> AbstractContextManager[Any]:
    """Within the block, turn autocast off, so that augmentation does not depend on the precision."""
    kind = torch.device(device).type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def to_float32(node: Node) -> Node:
    """Return the tree with bfloat16 leaves converted to float32."""
    return tree.map(_to_float32, node)  # type: ignore[no-any-return]


def _to_float32(leaf: Any) -> Any:
    return leaf.float() if leaf.dtype == torch.bfloat16 else leaf


@contextmanager
def _known_instructions(kind: str) -> Iterator[None]:
    """Within the block, disable oneDNN on a CPU without bfloat16 instructions: there it can crash the process."""
    if kind != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        yield
        return
    before = torch.backends.mkldnn.set_flags(False)
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(*before[:1])
