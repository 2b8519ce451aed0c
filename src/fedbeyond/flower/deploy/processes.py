"""Start and stop the processes of a federation: its server and its sites, with their child processes.

Processes are stopped by their ids. Torch is not imported: a process that only waits for others needs little memory.
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

START_TIMEOUT, STOP_TIMEOUT = 120.0, 15.0  # seconds
ADMISSION_TIMEOUT, RETRY_PAUSE = 150.0, 5.0  # seconds for which a site tries to join, and between two attempts


@contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP like Ctrl-C inside the block, so that started processes are stopped too."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:  # ignored under nohup
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def running_server(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the server of a federation, with the keys of its sites registered, until the block is left."""
    server = folder.absolute() / "server"
    host, port = ensure_address_free(folder)
    with started(operations.link_command(folder), server / "flower", server / "server.log") as process:
        end = time.monotonic() + START_TIMEOUT
        while not reachable(host, port):
            if process.poll() is not None or time.monotonic() > end:
                raise FederationError(f"the server did not start; its log ends with: {tail(server / 'server.log')}")
            time.sleep(0.2)
        operations.register(folder)
        yield process


def ensure_address_free(folder: Path) -> tuple[str, int]:
    """Return the host and port for a federation's server; `FederationError` if a process listens there."""
    host, _, port = operations.read_federation_config(folder).bind.rpartition(":")
    if reachable(host, int(port)):
        raise FederationError(
            f"{host}:{port} is in use, perhaps by a server that is still running; stop it, then serve again"
        )
    return host, int(port)


@contextmanager
def running_site(bundle: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a site until the block is left."""
    command = operations.node_command(bundle, port)
    with started(command, bundle.absolute() / "flower", bundle / "site.log") as process:
        yield process


def run_site(bundle: Path, port: int, report: Callable[[str], None]) -> int:
    """Run a site until it is stopped or fails, and return its exit code.

    For about a minute, Flower considers a killed node alive and rejects its key: retry until the key is accepted.
    """
    log, end = bundle / "site.log", time.monotonic() + ADMISSION_TIMEOUT
    report(f"joining {operations.site_settings(bundle)['superlink']}; log: {log}")
    while True:
        before = log.stat().st_size if log.exists() else 0
        with running_site(bundle, port) as process:
            code = process.wait()
        output = tail(log, min(4000, log.stat().st_size - before))
        if "Failed to activate SuperNode" not in " ".join(output.split()):
            return code
        if time.monotonic() > end:
            raise FederationError(
                "the server does not accept the key of this site: the key is not registered, or the site is already "
                f"connected; ask the federation's operator (log: {log})"
            )
        report(f"not admitted yet: Flower considers a killed site alive for a minute; retrying in {RETRY_PAUSE:g} s")
        time.sleep(RETRY_PAUSE)


@contextmanager
def started(command: list[str], home: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process, and stop it and all its child processes when the block is left."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(log, "ab") as file:
        process = subprocess.Popen(
            command, env=environment(home), stdout=file, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        yield process
    finally:
        groups = {process.pid} | process_groups(process.pid)
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for group in groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)  # child processes that are still running


def process_groups(process_id: int) -> set[int]:
    """Return the process groups of all descendants of a process (Linux only); Flower puts some in separate groups."""
    children: dict[int, list[tuple[int, int]]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent, group = map(int, path.read_text().rpartition(")")[2].split()[1:3])
            children.setdefault(parent, []).append((int(path.parent.name), group))
    groups: set[int] = set()
    waiting = [process_id]
    while waiting:
        for child, group in children.get(waiting.pop(), []):
            waiting.append(child)
            groups.add(group)
    return groups - {os.getpgrp()}


def free_ports(count: int) -> list[int]:
    """Return ports of this machine on which no process listens."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for free in sockets:
            free.bind(("127.0.0.1", 0))
        return [int(free.getsockname()[1]) for free in sockets]


def reachable(host: str, port: int) -> bool:
    """Return whether a process listens at this address."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, port)) == 0


def tail(log: Path, size: int = 800) -> str:
    """Return the end of a log file."""
    if not log.exists():
        return "(no log)"
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - size))
        return file.read().decode("utf-8", "replace").strip()
