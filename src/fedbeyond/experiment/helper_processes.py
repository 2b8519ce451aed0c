"""Helper processes of a bench: the same command again, for the runs that are free. They end with the lead process."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .._lifetime import end_with_parent

GRACE = 10.0  # seconds in which helpers that are terminated write the checkpoint of their last round


@contextmanager
def helpers(count: int, workers: int = 1) -> Iterator[None]:
    """Start helpers, and wait for them at the end of the block; an exception in it terminates them."""
    command = [sys.executable, "-m", "fedbeyond", *sys.argv[1:], "--workers", str(workers), "--helper"]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            pipe, null = subprocess.PIPE, subprocess.DEVNULL
            started.append(subprocess.Popen(command, stdin=pipe, stdout=null, stderr=null))
        yield
        for process in started:
            process.wait()
    finally:
        terminate(started)


def terminate(started: list[subprocess.Popen[bytes]]) -> None:
    """End helpers and wait until they have ended."""
    for process in started:
        process.terminate()
    deadline = time.monotonic() + GRACE
    for process in started:
        try:
            process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin:
            process.stdin.close()


def follow_lead() -> None:
    """In a helper: end when the lead process ends, and leave Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(sys.stdin.fileno())
