"""Files appear whole or not at all; what goes wrong is one line for the user."""

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
def storing(path: Path) -> Iterator[None]:
    """Turn what the system says of a file into one line for the user."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror or error}; make room or choose another --out, "
            f"then give the same command again: what was finished is kept"
        ) from None


def write(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, then rename it: a reader sees the old one or the new one."""
    partial = path.with_name(f".{path.name}.partial")
    with storing(path):
        try:
            with open(partial, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise


def note(path: Path) -> dict[str, Any]:
    """A small JSON file of a run."""
    try:
        found = json.loads(path.read_text("utf-8"))
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError) as error:
        raise StorageError(f"{path} cannot be read ({error}); delete {path.parent} to begin again") from None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make a folder if need be, and hold its lock; `BusyError` if another process does."""
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / "lock", "w")  # noqa: SIM115 (held as long as the block lasts)
    with lock:
        _hold(lock, folder)
        yield


def _hold(lock: IO[str], folder: Path) -> None:
    """Take the lock, or raise; a watcher looks at it for an instant, which is waited for."""
    for patience in (0.05, 0.05, 0):
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(patience)
    raise BusyError(f"{folder} is in use by another process; wait for it or choose another --out")
