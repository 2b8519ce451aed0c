"""Memory that is used again at once is not given back in between, unless there is little of it.

glibc returns large blocks to the system as soon as they are freed. Training frees and wants the same blocks in every
step, so that on a CPU a fifth to a quarter of its time goes into pages that are taken, wiped and mapped again. Blocks
that are kept have a price, too: models that stay lie among them, and leave holes that others do not fit into.
"""

import ctypes
import mmap
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # as in malloc.h
KEEPING = {MMAP_THRESHOLD: 2**30, TRIM_THRESHOLD: 2**31 - 1, TOP_PAD: 2**26}
SPARING = {MMAP_THRESHOLD: 2**21, TRIM_THRESHOLD: 2**31 - 1, TOP_PAD: 2**20}
APART = 2**17  # bytes of a tensor

kept = False  # whether this process holds on to what it has freed
scarce = False  # whether room for models counts for more than a little time, just now


def keep() -> bool:
    """Let this process hold on to memory that it has freed; whether its C library knows how."""
    global kept
    kept = _set(KEEPING)
    return kept


@contextmanager
def sparing() -> Iterator[None]:
    """Within the block, what is freed goes back to the system, and sites take care to hold few models at a time."""
    global scarce
    before, scarce = scarce, True
    if kept and not before:
        _set(SPARING)
    give_back()
    try:
        yield
    finally:
        scarce = before
        if kept and not before:
            _set(KEEPING)
        give_back()


def give_back() -> None:
    """Give the system what is free, once something large is over."""
    if library := _library("malloc_trim"):
        library.malloc_trim(0)


def copied(tensor: Tensor) -> Tensor:
    """A copy that stays for a while, laid out row by row."""
    return room(tensor, torch.empty(tensor.shape, device="meta").stride()).copy_(tensor.detach())


def room(like: Tensor, strides: tuple[int, ...]) -> Tensor:
    """Place for such numbers; apart from blocks that come and go where memory is scarce."""
    size = like.numel() * like.element_size()
    if not scarce or size < APART or like.device.type != "cpu" or sys.platform != "linux":
        return torch.empty_strided(like.shape, strides, dtype=like.dtype, device=like.device)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE  # a forked process has its own; filled at once
    return torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=like.dtype).as_strided(like.shape, strides)


def _set(settings: dict[int, int]) -> bool:
    library = _library("mallopt")
    return library is not None and all(library.mallopt(name, value) for name, value in settings.items())


def _library(wanted: str) -> ctypes.CDLL | None:
    """The C library, if it has such a function."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, wanted) else None
