"""The time of one answer: work that is late, or whose run was stopped, ends, and its reply is the reason.

A thread watches the clock and asks whether the run goes on. It interrupts the main thread with a signal, so that the
site still replies, and Flower's node can take the next message. A process that does not react is killed: here, or by
`fedbeyond join`, which reads the deadline from a file. Torch is not imported, so that `join` needs little memory.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from .. import _io
from ..errors import FederationError

FILES = "*.working"  # in a site's folder: one for each process that works on an answer
ASK_EVERY = 5.0  # seconds between two questions whether the run goes on
GRACE = 10.0  # seconds in which interrupted work must end
SIGNAL = signal.SIGUSR1


class Limit(NamedTuple):
    """How many seconds an answer may take, and the error that ends it then."""

    seconds: float
    error: FederationError


class Work(NamedTuple):
    """A process that works on an answer."""

    process: int
    started: str  # when the process was started: its number may be used again
    until: float  # the time at which its answer is late


@contextmanager
def limited(folder: Path, limit: Limit, is_stopped: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """End the block with an error when its time is over or its run was stopped; in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can be interrupted; Flower's client processes answer in it
        return
    if limit.seconds <= 0:
        raise limit.error
    done, reasons = threading.Event(), list[FederationError]()

    def interrupt(*_: object) -> None:
        if reasons and not done.is_set():
            raise reasons[0]

    signal.signal(SIGNAL, interrupt)  # it stays: a signal that comes after the block has no effect
    with noted(folder, limit.seconds):
        threading.Thread(target=_watch, args=(limit, is_stopped, done, reasons), daemon=True).start()
        try:
            yield
        finally:
            done.set()


def _watch(limit: Limit, is_stopped: Callable[[], bool], done: threading.Event, reasons: list[FederationError]) -> None:
    """Wait until the work is done; if its time is over or its run was stopped, interrupt it, then kill the process."""
    end = time.monotonic() + limit.seconds
    while not reasons:
        if done.wait(max(0.0, min(ASK_EVERY, end - time.monotonic()))):
            return
        if time.monotonic() >= end:
            reasons.append(limit.error)
        elif is_stopped():
            reasons.append(FederationError("the run was stopped"))
    for _ in range(max(1, int(GRACE))):  # more than once: an interruption may come where errors are ignored
        signal.pthread_kill(threading.main_thread().ident or 0, SIGNAL)
        if done.wait(1):
            return
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def noted(folder: Path, seconds: float) -> Iterator[None]:
    """Within the block, a file in the site's folder holds the number of this process and its deadline."""
    work = Work(os.getpid(), started(os.getpid()), time.time() + seconds)
    path = folder / FILES.replace("*", str(work.process))
    with _io.storage_errors(folder):
        _io.create_private(folder)
        with open(path, "wb", opener=_io.private_opener) as file:  # whoever reads half of it reads it again
            file.write(json.dumps(work._asdict()).encode())
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def running(folder: Path) -> list[Work]:
    """Return who works on an answer at a site."""
    return [work for path in folder.glob(FILES) if (work := _read(path)) and _is_alive(work)]


def forget_ended(folder: Path) -> None:
    """Delete the files of processes that were killed while they worked on an answer."""
    for path in folder.glob(FILES):
        if (work := _read(path)) and not _is_alive(work):
            path.unlink(missing_ok=True)


def _read(path: Path) -> Work | None:
    try:
        return Work(**json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError):  # deleted, or being written
        return None


def _is_alive(work: Work) -> bool:
    return bool(work.started) and work.started == started(work.process)


def started(process: int) -> str:
    """Return when a process was started, in the system's own unit; "" if there is none (Linux only)."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
