"""The processes of a federation, its server and its sites, with all that they start; ended by their numbers.

Nothing here needs torch: whoever serves or joins holds no more memory than it takes to wait.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ...errors import FederationError
from . import operations
from .operations import environment

STARTING, ENDING = 120.0, 15.0  # seconds that a process may take
REFUSED, AGAIN = 150.0, 5.0  # seconds for which a site asks to be let in, and between two times


@contextmanager
def hold() -> Iterator[None]:
    """Be ended as by Ctrl-C when told to terminate or left by the terminal, so that what was started ends too."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:  # as under nohup
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def serving(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server that runs and knows its sites' keys, until the block is left."""
    server = folder.absolute() / "server"
    host, port = vacant(folder)
    with started(operations.link_command(folder), server / "flower", server / "server.log") as process:
        end = time.monotonic() + STARTING
        while not reachable(host, port):
            if process.poll() is not None or time.monotonic() > end:
                raise FederationError(f"the server did not start: {tail(server / 'server.log')}")
            time.sleep(0.2)
        operations.register(folder)
        yield process


def vacant(folder: Path) -> tuple[str, int]:
    """Where a federation's server is to listen, if nobody does."""
    host, _, port = operations.charter_of(folder).bind.rpartition(":")
    if reachable(host, int(port)):
        raise FederationError(f"{host}:{port} is taken, perhaps by a server that still runs; end it, then serve again")
    return host, int(port)


@contextmanager
def joined(bundle: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A site that takes part until the block is left."""
    command = operations.node_command(bundle, port)
    with started(command, bundle.absolute() / "flower", bundle / "site.log") as process:
        yield process


def take_part(bundle: Path, port: int, tell: Callable[[str], None]) -> int:
    """Take part until the site is stopped or something fails; its exit code.

    Flower takes a node that was killed for alive, and lets nobody in with its key, for about a minute: wait for that.
    """
    log, end = bundle / "site.log", time.monotonic() + REFUSED
    tell(f"joining {operations.site_settings(bundle)['superlink']}; log: {log}")
    while True:
        before = log.stat().st_size if log.exists() else 0
        with joined(bundle, port) as process:
            code = process.wait()
        said = tail(log, min(4000, log.stat().st_size - before))
        if "Failed to activate SuperNode" not in " ".join(said.split()):
            return code
        if time.monotonic() > end:
            raise FederationError(
                "the server lets nobody in with this key: it does not know it, or the site takes part elsewhere; ask "
                f"who runs the federation (log: {log})"
            )
        tell(f"not let in yet: a site that was killed counts as alive for a minute; again in {AGAIN:g} s")
        time.sleep(AGAIN)


@contextmanager
def started(command: list[str], home: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of ours with all that it starts, ended by its number when the block is left."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(log, "ab") as file:
        process = subprocess.Popen(
            command, env=environment(home), stdout=file, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        yield process
    finally:
        groups = {process.pid} | groups_of(process.pid)
        process.terminate()
        try:
            process.wait(ENDING)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for group in groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)  # what it left behind


def groups_of(number: int) -> set[int]:
    """The groups of processes that one and its children started, where Linux tells: Flower sets some apart."""
    parents: dict[int, list[tuple[int, int]]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent, group = map(int, path.read_text().rpartition(")")[2].split()[1:3])
            parents.setdefault(parent, []).append((int(path.parent.name), group))
    found: set[int] = set()
    waiting = [number]
    while waiting:
        for child, group in parents.get(waiting.pop(), []):
            waiting.append(child)
            found.add(group)
    return found - {os.getpgrp()}


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on."""
    with ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in found]


def reachable(host: str, port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as one:
        one.settimeout(1)
        return one.connect_ex((host, port)) == 0


def tail(log: Path, size: int = 800) -> str:
    """The end of a log."""
    if not log.exists():
        return "it said nothing"
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - size))
        return file.read().decode("utf-8", "replace").strip()
