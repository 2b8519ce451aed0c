"""Run a whole federation on this machine: the server and every site as processes, with TLS and keys."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ...errors import ConfigError, FederationError
from ...experiment import run_folder
from ...experiment.build import dataset, partition
from ...experiment.config import Config
from ...spec import unseen_domains
from ..node import federated_method
from . import operations
from .folder import FEDERATION_FILE, FederationConfig, init, read_federation_config, site_settings
from .keys import REGISTERED, enrol_all
from .processes import ensure_address_free, free_ports, running_server, running_site

STATUS_PAUSE = 20.0  # seconds between two requests to Flower for the status of a run
ROUND_TIMEOUT = 3600.0  # seconds for a round


def run_local_federation(config: Config, folder: Path, out: Path) -> None:
    """Run a federation over loopback: each client is a site, and each unseen domain is a guest."""
    domains = {name: client.domain for name, client in partition(config, dataset(config.data)).clients.items()}
    federated_method(config, len(domains))
    run_folder.ensure_same_run(run_folder.path(out, config), config)
    names, guests = tuple(domains), unseen_domains(config.target)
    server, *ports = free_ports(1 + len(names) + len(guests))
    federation = FederationConfig(f"127.0.0.1:{server}", names, guests, f"127.0.0.1:{server}", deadline=600)
    own: dict[str, dict[str, Any]] = {}
    for name in (*guests, *names):
        own[name] = {"data": config.data, "domain": domains.get(name, name)}
        own[name] |= {"secret": ""} if name in names else {}  # without a secret, dp draws the noise of the simulator
        own[name] |= {"public": config.public} if config.public else {}
    if (folder / FEDERATION_FILE).exists():
        reset_folder(folder, federation, own)
    else:
        init(folder, federation, own)
        enrol_all(folder)
    with running_server(folder), ExitStack() as stack:
        names_and_ports = zip(own, ports, strict=True)
        nodes = [stack.enter_context(running_site(folder / "sites" / name, port)) for name, port in names_and_ports]
        for node in nodes:
            stack.callback(node.terminate)  # all at once at the end: each takes seconds
        print(f"{len(names)} sites and {len(guests)} guests on 127.0.0.1; logs in {folder}")
        wait_for_run(folder, run_folder.path(out, config), config, operations.submit(folder, config, out))


def reset_folder(folder: Path, federation: FederationConfig, own: Mapping[str, Mapping[str, Any]]) -> None:
    """Delete Flower's state in a stopped federation's folder; `ConfigError` if it has other sites or data."""
    existing = read_federation_config(folder)
    same = (existing.sites, existing.guests) == (federation.sites, federation.guests)
    same &= existing.address == existing.bind
    for name in own if same else ():
        same &= own[name].items() <= site_settings(folder / "sites" / name).items()
    if not same:
        raise ConfigError(f"{folder} holds a federation with other sites or data; choose another --folder")
    ensure_address_free(folder)
    for path in (folder / "server").glob("state.db*"):
        path.unlink()
    (folder / "server" / REGISTERED).unlink(missing_ok=True)


def wait_for_run(folder: Path, home: Path, config: Config, number: str) -> None:
    """Wait until a run is finished, and print its rounds; `FederationError` if it fails or no round ends for long."""
    end, seen = time.monotonic() + ROUND_TIMEOUT, len(run_folder.lines(home))
    next_check = time.monotonic() + STATUS_PAUSE
    while True:
        for line in run_folder.lines(home)[seen:]:
            seen, end = seen + 1, time.monotonic() + ROUND_TIMEOUT
            print(f"round {line['round'] + 1} of {line['rounds']}")
        if run_folder.is_finished(home, config):
            return
        if time.monotonic() > next_check:
            state, next_check = operations.status(folder, number), time.monotonic() + STATUS_PAUSE
            if state.startswith("finished") and not run_folder.is_finished(home, config):
                raise FederationError(f"the run failed ({state}): {operations.log_tail(folder, number)}")
        if time.monotonic() > end:
            raise FederationError(f"no round finished within {ROUND_TIMEOUT:g} s; see the logs in {folder}")
        time.sleep(0.5)
