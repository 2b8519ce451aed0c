"""Atomic writes, private files, locks of folders, and one-line errors for files."""

import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from .errors import BusyError, StorageError

PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn an `OSError` inside the block into a `StorageError` of one line."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror or error}; free disk space or choose another out folder, "
            f"then run the same command again: finished work is kept"
        ) from None


def create_private(folder: Path) -> None:
    """Create a folder that only its owner can enter, whatever the umask is; restrict it if it exists and is ours."""
    folder.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
    with suppress(PermissionError):  # the folder of another user: its files are private all the same
        _restrict(folder, PRIVATE_FOLDER)


def private_opener(path: str, flags: int) -> int:
    """Open a file for `open(..., opener=)` so that only its owner can read it, whatever the umask is."""
    descriptor = os.open(path, flags, PRIVATE_FILE)
    try:
        _restrict(descriptor, PRIVATE_FILE)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _restrict(place: Path | int, mode: int) -> None:
    if stat.S_IMODE(os.stat(place).st_mode) != mode:
        os.chmod(place, mode)


def write(path: Path, content: bytes, private: bool = False) -> None:
    """Write a file atomically, through a temporary file: a reader sees the old content or the new content."""
    write_all({path: content}, private)


def write_all(contents: Mapping[Path, bytes], private: bool = False) -> None:
    """Write files that belong together, each atomically; an error or Ctrl-C before all are on disk changes none."""
    partials = {path.with_name(f".{path.name}.partial"): path for path in contents}
    try:
        for partial, path in partials.items():
            with storage_errors(path), open(partial, "wb", opener=private_opener if private else None) as file:
                file.write(contents[path])
                file.flush()
                os.fsync(file.fileno())
        for partial, path in partials.items():
            with storage_errors(path):
                partial.replace(path)
    except BaseException:
        for partial in partials:
            with suppress(OSError):
                partial.unlink()
        raise


def read_json(path: Path, remedy: str = "") -> dict[str, Any]:
    """Read a small JSON file; return {} if it does not hold an object; `remedy` says what to do if that fails."""
    try:
        content = json.loads(path.read_text("utf-8"))
        return content if isinstance(content, dict) else {}
    except (OSError, ValueError) as error:
        remedy = remedy or f"delete {path.parent} to start over"
        raise StorageError(f"{path} cannot be read ({error}); {remedy}") from None


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
    raise BusyError(f"{folder} is in use by another process; wait until it ends, or choose another out folder")
