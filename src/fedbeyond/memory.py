"""Memory that is used again at once is not given back in between.

glibc returns large blocks to the system as soon as they are freed. Training frees and wants the same blocks in every
step, so that on a CPU a fifth to a quarter of its time goes into pages that are taken, wiped and mapped again.
"""

import ctypes
import sys

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # as in malloc.h


def keep() -> bool:
    """Let this process hold on to memory that it has freed; whether its C library knows how."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if not hasattr(library, "mallopt"):
        return False
    settings = {MMAP_THRESHOLD: 2**30, TRIM_THRESHOLD: 2**31 - 1, TOP_PAD: 2**26}
    return all(library.mallopt(name, value) for name, value in settings.items())  # type: ignore[union-attr]
