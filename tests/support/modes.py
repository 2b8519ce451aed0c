"""Who may read files: their modes, and files that are written under a given umask."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def umask(mode: int) -> Iterator[None]:
    """Write files under another umask inside the block."""
    before = os.umask(mode)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def readable_for_others(folder: Path) -> list[Path]:
    """The folder and everything in it that another user could read."""
    return [path for path in (folder, *sorted(folder.rglob("*"))) if mode(path) & 0o077]
