"""The processes of a federation: its server, a site, or all of them on this machine, with TLS and keys, for a trial."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from . import operators
from .config import Config
from .errors import FederationError
from .experiment import finished, lines, place
from .operators import Charter, environment
from .setting import dataset, division
from .spelling import unseen_domains

STARTING, ENDING = 120.0, 15.0  # seconds that a process may take
LOOKING = 20.0  # between two questions to Flower what became of a run


def try_out(
    config: Config, folder: Path, out: Path, tell: Callable[[str], None] = print, patience: float = 3600
) -> None:
    """Play a run over loopback as hospitals would: every domain a site, the unseen ones guests."""
    names = tuple(division(config, dataset(config.data)).clients)
    guests = unseen_domains(config.target)
    server, *ports = free_ports(1 + len(names) + len(guests))
    charter = Charter(f"127.0.0.1:{server}", names, guests, f"127.0.0.1:{server}", deadline=600)
    homes = {name: holding.domain for name, holding in division(config, dataset(config.data)).clients.items()}
    own = {name: {"data": config.data, "domain": homes.get(name, name)} for name in (*names, *guests)}
    operators.init(folder, charter, own)
    with serving(folder), ExitStack() as stack:
        for name, port in zip((*names, *guests), ports, strict=True):
            stack.enter_context(joined(folder / "sites" / name, port))
        tell(f"{len(names)} sites and {len(guests)} guests on 127.0.0.1; logs in {folder}")
        number = operators.submit(folder, config, out)
        follow(folder, config, out, number, tell, patience)


def follow(folder: Path, config: Config, out: Path, number: str, tell: Callable[[str], None], patience: float) -> None:
    """Wait until a run is over, saying what becomes of it; complain if it breaks down."""
    home, end, told = place(out, config), time.monotonic() + patience, len(lines(place(out, config)))
    look = time.monotonic() + LOOKING
    while True:
        for line in lines(home)[told:]:
            told += 1
            tell(f"round {line['round'] + 1} of {line['rounds']}")
        if finished(home, config):
            return
        if time.monotonic() > look:
            state, look = operators.status(folder, number), time.monotonic() + LOOKING
            if state.startswith("finished") and not finished(home, config):
                raise FederationError(f"the run broke down ({state}): {operators.last_words(folder, number)}")
        if time.monotonic() > end:
            raise FederationError(f"the run is not over after {patience:g} s; see the logs in {folder}")
        time.sleep(0.5)


@contextmanager
def hold() -> Iterator[None]:
    """Be ended as by Ctrl-C when told to terminate, so that what was started ends too."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def serving(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server that runs and knows its sites' keys, until the block is left."""
    server = folder.absolute() / "server"
    with started(operators.link_command(folder), server / "flower", server / "server.log") as process:
        host, _, port = operators.charter_of(folder).bind.rpartition(":")
        end = time.monotonic() + STARTING
        while not reachable(host, int(port)):
            if process.poll() is not None or time.monotonic() > end:
                raise FederationError(f"the server did not start: {tail(server / 'server.log')}")
            time.sleep(0.2)
        operators.register(folder)
        yield process


@contextmanager
def joined(bundle: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A site that takes part until the block is left."""
    command = operators.node_command(bundle, port)
    with started(command, bundle.absolute() / "flower", bundle / "site.log") as process:
        yield process


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
        process.terminate()
        try:
            process.wait(ENDING)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it left behind


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
    return log.read_text("utf-8", "replace")[-size:].strip() if log.exists() else "it said nothing"
