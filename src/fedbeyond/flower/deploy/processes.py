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
from typing import NoReturn

from ..._io import create_private, private_opener
from ...errors import FederationError
from . import operations, watchdog
from .addresses import split_address
from .admission import is_registered, reason_for_end
from .folder import read_federation_config, site_settings
from .operations import environment

START_TIMEOUT, STOP_TIMEOUT = 120.0, 15.0  # seconds
ALIVE = "another join runs with this key, or one was killed less than a minute ago"
REJECTIONS = {  # whether the server knows the key of a site: why it rejects the site, and why it may still accept it
    True: ("the site is already connected", ALIVE),
    False: ("its key is not registered", "the server does not know its key; ask the operator to register it"),
    None: ("its key is not registered, or the site is already connected", ALIVE),
}
PRIVATE_UMASK = 0o077  # of a site's processes: only their user can read what they write
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
    create_private(server)  # Flower's database in it holds messages
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
    bind = read_federation_config(folder).bind
    host, port = split_address(bind)
    if reachable(host, port):
        raise FederationError(f"{bind} is in use, perhaps by a server that is still running; stop it, then serve again")
    return host, port


def register_if_serving(folder: Path) -> bool:
    """Let the server accept the stored keys now; return False if it does not run, since it does so when it starts."""
    if not reachable(*split_address(read_federation_config(folder).bind)):
        return False
    operations.register(folder)
    return True


@contextmanager
def running_site(bundle: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a site until the block is left."""
    command = operations.node_command(bundle, port)
    with started(command, bundle.absolute() / "flower", bundle / "site.log", PRIVATE_UMASK) as process:
        yield process


def run_site(bundle: Path, port: int, report: Callable[[str], None]) -> NoReturn:
    """Run a site until it is stopped; `FederationError` with the reason if it ends otherwise, whatever its exit code.

    For about a minute, Flower considers a killed node alive and rejects its key: retry until the key is accepted.
    """
    log, end = bundle / "site.log", time.monotonic() + ADMISSION_TIMEOUT
    settings = site_settings(bundle)
    address = settings["superlink"]
    report(f"joining {address}; log: {log}")
    while True:
        before = log.stat().st_size if log.exists() else 0
        lines, home = watchdog.Log(log), bundle.absolute() / "flower"
        with running_site(bundle, port) as process:
            code = watchdog.supervise(process, lines, home, Path(settings["folder"]), report)
        if code is None:  # start it again
            end = time.monotonic() + ADMISSION_TIMEOUT
            continue
        output = tail(log, min(4000, log.stat().st_size - before))
        if "Failed to activate SuperNode" not in " ".join(output.split()):
            raise FederationError(f"the site ended: {reason_for_end(output, code)} (log: {log})")
        reason, hint = REJECTIONS[is_registered(address, bundle)]
        if time.monotonic() > end:
            raise FederationError(f"the server rejects this site: {reason}; ask the federation's operator (log: {log})")
        report(f"not admitted yet: {hint}; retrying in {RETRY_PAUSE:g} s")
        time.sleep(RETRY_PAUSE)


@contextmanager
def started(command: list[str], home: Path, log: Path, umask: int = -1) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process, and stop it and all its child processes when the block is left; `umask`: -1 as here."""
    create_private(home)
    operations.write_launcher(home)
    with open(log, "ab", opener=private_opener) as file:
        process = subprocess.Popen(
            command,
            env=environment(home),
            stdout=file,
            stderr=file,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            umask=umask,
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
    with suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False


def tail(log: Path, size: int = 800) -> str:
    """Return the end of a log file."""
    if not log.exists():
        return "(no log)"
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - size))
        return file.read().decode("utf-8", "replace").strip()
