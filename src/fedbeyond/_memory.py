"""Tune malloc: keep freed blocks, or return them to the operating system in low-memory mode.

glibc returns large blocks to the system as soon as they are freed. Training frees and allocates the same blocks in
every step, so on a CPU a fifth to a quarter of its time goes into unmapping, clearing and mapping pages. Keeping blocks
has a price: long-lived models lie among them, which fragments memory.
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
APART = 2**17  # bytes; in low-memory mode larger tensors get a memory mapping of their own

kept = False  # whether this process keeps freed blocks
active = False  # whether low-memory mode is on: memory for models matters more than speed


def keep_freed_memory() -> bool:
    """Make malloc keep freed blocks; return whether the C library supports it."""
    global kept
    kept = _set(KEEPING)
    return kept


@contextmanager
def low_memory() -> Iterator[None]:
    """Within the block, return freed memory to the system, and let sites hold few models at a time."""
    global active
    before, active = active, True
    if kept and not before:
        _set(SPARING)
    release()
    try:
        yield
    finally:
        active = before
        if kept and not before:
            _set(KEEPING)
        release()


def release() -> None:
    """Return all free memory to the system; call it after a large piece of work."""
    if library := _library("malloc_trim"):
        library.malloc_trim(0)


def copied(tensor: Tensor) -> Tensor:
    """Return a detached, contiguous copy that is expected to live long."""
    return allocate(tensor, torch.empty(tensor.shape, device="meta").stride()).copy_(tensor.detach())


def allocate(like: Tensor, strides: tuple[int, ...]) -> Tensor:
    """Allocate an uninitialised tensor like `like`; large ones in a mapping of their own in low-memory mode."""
    size = like.numel() * like.element_size()
    if not active or size < APART or like.device.type != "cpu" or sys.platform != "linux":
        return torch.empty_strided(like.shape, strides, dtype=like.dtype, device=like.device)
    flags = (
        mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    )  # private to a forked process; pages mapped at once
    return torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=like.dtype).as_strided(like.shape, strides)


def _set(settings: dict[int, int]) -> bool:
    library = _library("mallopt")
    return library is not None and all(library.mallopt(name, value) for name, value in settings.items())


def _library(function: str) -> ctypes.CDLL | None:
    """Return the C library if it has `function`, else None."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, function) else None
