"""Atomic writes, locks of folders, and one-line errors for files."""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from .errors import BusyError, StorageError


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn an `OSError` inside the block into a `StorageError` of one line."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror or error}; free disk space or choose another --out, "
            f"then run the same command again: finished work is kept"
        ) from None


def write(path: Path, content: bytes) -> None:
    """Write a file atomically, through a temporary file: a reader sees the old content or the new content."""
    partial = path.with_name(f".{path.name}.partial")
    with storage_errors(path):
        try:
            with open(partial, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise


def read_json(path: Path) -> dict[str, Any]:
    """Read a small JSON file of a run; return {} if it does not hold an object."""
    try:
        content = json.loads(path.read_text("utf-8"))
        return content if isinstance(content, dict) else {}
    except (OSError, ValueError) as error:
        raise StorageError(f"{path} cannot be read ({error}); delete {path.parent} to start over") from None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Create a folder if needed and hold its lock inside the block; raise `BusyError` if another process holds it."""
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / "lock", "w")  # noqa: SIM115 (closed at the end of the block)
    with lock:
        _hold(lock, folder)
        yield


def _hold(lock: IO[str], folder: Path) -> None:
    """Acquire the lock or raise `BusyError`; retry twice, because `watch` holds the lock for an instant."""
    for delay in (0.05, 0.05, 0):
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(delay)
    raise BusyError(f"{folder} is in use by another process; wait until it ends, or choose another --out")
