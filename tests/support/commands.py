"""fedbeyond's commands: those that end, in this process; those that go on, as processes ended by their numbers."""

import fcntl
import io
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path

from fedbeyond.cli.main import app
from fedbeyond.flower.deploy import processes

PATIENCE = 300  # seconds for what takes less than a minute on a machine with nothing else to do
OFTEN = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25"}  # Flower looks once a second for a process to start


def fedbeyond(*words):
    """What a command prints, if it ends well; in this process, which has imported torch."""
    with redirect_stdout(io.StringIO()) as said:
        assert not app([*map(str, words)], standalone_mode=False), said.getvalue()
    return said.getvalue()


def spelled(*words):
    """Return a command as a process of its own is started."""
    return [sys.executable, "-m", "fedbeyond", *map(str, words)]


@contextmanager
def going(*words, log, **variables):
    """A command that goes on until the block is left; Ctrl-C is heard though tests may run in the background."""

    def hear():
        signal.signal(signal.SIGINT, signal.default_int_handler)

    with open(log, "ab") as file:
        pipes = {"stdout": file, "stderr": file, "stdin": subprocess.DEVNULL}
        options = {"env": os.environ | OFTEN | variables, "preexec_fn": hear, "start_new_session": True}
        process = subprocess.Popen(spelled(*words), **pipes, **options)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(100)
        except subprocess.TimeoutExpired:
            kill(process)


def kill(process):
    """As when a machine loses power: the process and all that it started, at once."""
    for group in (process.pid, *processes.process_groups(process.pid)):
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    process.wait(10)


def until(true, *watched, seconds=PATIENCE):
    """Wait until something holds, while the processes that it takes are there."""
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, f"not within {seconds} s"
        assert all(process.poll() is None for process in watched)
        time.sleep(0.03)
    return found


def left(folder):
    """The processes that have to do with a folder: it stands in their words or in their environment."""
    found, mark = {}, os.fsencode(folder)
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (path / "cmdline").read_bytes()
            if int(path.name) != os.getpid() and mark in words + (path / "environ").read_bytes():
                found[int(path.name)] = words.replace(b"\0", b" ")[:200]
    return found


def remaining(folder, seconds=20):
    """Those that are still there in the end: what was told to end, or killed, takes a moment."""
    end = time.monotonic() + seconds
    while (found := left(folder)) and time.monotonic() < end:
        time.sleep(0.05)
    return found


def on_terminal(command, columns=80):
    """What a command writes to a terminal, and its exit code."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    environment |= {"TERM": "xterm"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    written = b""
    while True:
        try:
            written += (piece := os.read(ours, 65536))
        except OSError:  # Linux: the other end is closed
            break
        if not piece:
            break
    os.close(ours)
    return written.decode(), process.wait(60)
