"""The site ledger: every different answer that left a site, over all runs, in one file that only grows.

An answer's line is on disk before the answer leaves. `ledger.head` has the size and the digest of what was written, so
that a line that is missing or changed is an error, and not an empty ledger. A last line that was not completely written
belongs to an answer that never left.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from .. import _io
from ..errors import StorageError

LEDGER, HEAD, LOCK = "ledger.jsonl", "ledger.head", "ledger.lock"


class Entry(NamedTuple):
    """One answer that left, or is about to leave."""

    run: str  # as the server names it
    config: str  # digest of the configuration
    sources: int  # sites that take part in training
    subject: str  # of the server's message: ask, evaluate or measure
    kind: str  # of request
    round: int
    digest: str  # of the reply; of the request, if models were evaluated or measured
    models: str = ""  # digest of the models that were evaluated or measured
    layers: tuple[str, ...] = ()  # that were measured
    noise: float = 0.0  # standard deviation of its noise, over the sensitivity; 0: none
    delta: float = 0.0  # at which the run computes epsilon; 0: no noise
    evaluated: int = 0  # scores of models in the reply to a request of the method
    splits: str = ""  # digest of what decides the site's splits


class SiteLedger:
    """The answers that left a site, and a file to which others are added while its lock is held."""

    def __init__(self, folder: Path, content: bytes) -> None:
        self.folder, self._content = folder, content

    def entries(self, **wanted: str) -> Iterator[Entry]:
        """Yield the answers that left, of all runs and subjects or of the `wanted` ones; others are not parsed."""
        marks = [json.dumps({key: value})[1:-1].encode() for key, value in wanted.items()]
        return (_entry(line) for line in self._content.splitlines() if all(mark in line for mark in marks))

    def add(self, entry: Entry) -> None:
        """Write an entry to disk."""
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds")} | entry._asdict()
        content = self._content + json.dumps(line).encode() + b"\n"
        path = self.folder / LEDGER
        with _io.storage_errors(path):
            if not self._content:
                _write_head(self.folder, b"")  # a ledger without one is never a new one
            with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                file.truncate(len(self._content))  # a line that was not completely written
                file.seek(len(self._content))
                file.write(content[len(self._content) :])
                file.flush()
                os.fsync(file.fileno())
        _write_head(self.folder, content)
        self._content = content


@contextmanager
def opened(folder: Path) -> Iterator[SiteLedger]:
    """Read a site's ledger and hold its lock inside the block; `StorageError` if the file is damaged."""
    with _io.storage_errors(folder):
        _io.create_private(folder)
        lock = open(os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600), "rb")  # noqa: SIM115 (closed below)
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may hold it for seconds
        yield _read(folder)


def snapshot(folder: Path) -> SiteLedger:
    """Return a site's ledger as it is now, to be read; nothing is created, so that any user may look before the site.

    `StorageError` if the file is damaged.
    """
    try:
        lock = open(folder / LOCK, "rb")  # noqa: SIM115 (closed below)
    except FileNotFoundError:
        return _read(folder)
    except OSError as error:
        raise _unreadable(folder / LOCK, error) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        return _read(folder)


def read(folder: Path) -> list[Entry]:
    """Return the answers that left a site; `StorageError` if the file is damaged."""
    return list(snapshot(folder).entries())


def _read(folder: Path) -> SiteLedger:
    content, head = _bytes(folder / LEDGER), _bytes(folder / HEAD)
    if not content and not head:
        return SiteLedger(folder, b"")
    try:
        if not head:
            raise ValueError(f"{HEAD} is missing")
        size, digest = head.decode().split()
        if len(content) < int(size) or sha256(content[: int(size)]).hexdigest() != digest:
            raise ValueError("lines that were written are missing or changed")
        complete = content[: content.rfind(b"\n") + 1]
        for line in complete[int(size) :].splitlines():  # of a process that ended before it wrote the head
            _entry(line)
        return SiteLedger(folder, complete)
    except (ValueError, TypeError, KeyError) as error:
        raise StorageError(
            f"{folder / LEDGER} is damaged ({error}); restore it with {HEAD} from a copy. To give up what this site "
            "knows of its past answers, move both files away"
        ) from None


def _entry(line: bytes) -> Entry:
    record = json.loads(line)
    del record["time"]
    return Entry(**record | {"layers": tuple(record["layers"])})


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> StorageError:
    return StorageError(f"{path} cannot be read: {error.strerror or error}; see the site's folder")


def _write_head(folder: Path, content: bytes) -> None:
    _io.write(folder / HEAD, f"{len(content)} {sha256(content).hexdigest()}\n".encode(), private=True)
    with _io.storage_errors(folder):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)  # the names of new files, too
        finally:
            os.close(handle)
