"""Watch a site's processes: kill work that is late, and start Flower's node again if it cannot take messages any more.

Flower's node takes one message at a time, and waits for the reply of the process that works on it. If that process is
killed, Flower replies for it after a minute. If it ends otherwise without a reply (SIGTERM, an error before the message
is read), the node waits forever. A node whose heartbeat met an unexpected error sends no other one, so that the server
considers it absent.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from .. import work

PAUSE = 2.0  # seconds between two looks
LOST = 90.0  # seconds without a process after which a node waits in vain; Flower gives up after 60
CLIENT = b"flwr-clientapp"  # Flower's program that works on one message
# what the node's log says when it has a message, when it has the reply, and when the thread of its heartbeat ends
BEGINS, ENDS, SILENT = b"Received successfully", b"Sending: ", b"in send_node_heartbeat"


def supervise(
    process: subprocess.Popen[bytes], log: "Log", home: Path, folder: Path, report: Callable[[str], None]
) -> int | None:
    """Watch the node of a site until it ends, and return its exit code; None if it must be started again.

    `home` is the folder of Flower's files. `folder` is that of private states, where processes note
    their deadlines.
    """
    work.forget_ended(folder)
    worked = time.monotonic()
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(PAUSE)
        kill_late(folder, report)
        log.read()
        if not log.works or clients(home):
            worked = time.monotonic()
        reason = "waits for a process that has ended without a reply" if time.monotonic() > worked + LOST else ""
        reason = "sends no heartbeat any more" if log.is_silent else reason
        if reason:
            report(f"Flower's node {reason}; starting it again")
            return None


def kill_late(folder: Path, report: Callable[[str], None]) -> None:
    """Kill processes that work on an answer past its deadline and did not end by themselves."""
    for late in work.running(folder):
        if time.time() > late.until + 2 * work.GRACE:
            report(f"process {late.process} works past its deadline and does not react; killing it")
            with suppress(ProcessLookupError):
                os.kill(late.process, signal.SIGKILL)


def clients(home: Path) -> list[int]:
    """Return the processes that work on a message for the node whose Flower folder is `home` (Linux only)."""
    found, mark = [], b"FLWR_HOME=" + os.fsencode(home)
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if CLIENT in (path / "cmdline").read_bytes() and mark in (path / "environ").read_bytes().split(b"\0"):
                found.append(int(path.name))
    return found


class Log:
    """What the log of a node that is about to be started says; it is read piece by piece."""

    def __init__(self, path: Path) -> None:
        self.path, self.position = path, path.stat().st_size if path.exists() else 0
        self.works, self.is_silent = False, False  # on a message; without a heartbeat

    def read(self) -> None:
        """Read the lines that are new."""
        with suppress(OSError), open(self.path, "rb") as file:
            file.seek(self.position)
            for line in file.read().splitlines(keepends=True):
                if not line.endswith(b"\n"):
                    break  # not yet written to its end
                self.position += len(line)
                self.works = BEGINS in line or (self.works and ENDS not in line)
                self.is_silent |= SILENT in line
