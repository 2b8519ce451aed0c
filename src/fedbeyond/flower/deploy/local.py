"""A federation tried out: its server and all its sites as processes on this machine, with TLS and keys."""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ...errors import ConfigError, FederationError
from ...experiment.build import dataset, division
from ...experiment.config import Config
from ...experiment.runner import finished, lines, place
from ...spec import unseen_domains
from ..node import playable
from . import operations
from .operations import Charter
from .processes import free_ports, joined, serving, vacant

LOOKING = 20.0  # seconds between two questions to Flower what became of a run


def try_out(
    config: Config, folder: Path, out: Path, tell: Callable[[str], None] = print, patience: float = 3600
) -> None:
    """Play a run over loopback as hospitals would: every domain a site, the unseen ones guests.

    It is given up if no round ends within `patience` seconds.
    """
    homes = {name: holding.domain for name, holding in division(config, dataset(config.data)).clients.items()}
    playable(config, len(homes))
    names, guests = tuple(homes), unseen_domains(config.target)
    server, *ports = free_ports(1 + len(names) + len(guests))
    charter = Charter(f"127.0.0.1:{server}", names, guests, f"127.0.0.1:{server}", deadline=600)
    own: dict[str, dict[str, Any]] = {name: {"data": config.data, "domain": homes.get(name, name)} for name in guests}
    own |= {name: {"data": config.data, "domain": homes[name], "secret": ""} for name in names}  # noise as simulated
    own = {name: told | ({"public": config.public} if config.public else {}) for name, told in own.items()}
    if (folder / operations.CHARTER).exists():
        again(folder, charter, own)
    else:
        operations.init(folder, charter, own)
    with serving(folder), ExitStack() as stack:
        places = zip(own, ports, strict=True)
        nodes = [stack.enter_context(joined(folder / "sites" / name, port)) for name, port in places]
        for node in nodes:
            stack.callback(node.terminate)  # all at once in the end: each takes seconds
        tell(f"{len(names)} sites and {len(guests)} guests on 127.0.0.1; logs in {folder}")
        number = operations.submit(folder, config, out)
        follow(folder, config, out, number, tell, patience)


def again(folder: Path, charter: Charter, own: Mapping[str, Mapping[str, Any]]) -> None:
    """Make the folder of a trial that was stopped ready for another time; of what was, Flower need not know."""
    found = operations.charter_of(folder)
    same = (found.sites, found.guests) == (charter.sites, charter.guests) and found.address == found.bind
    for name in own if same else ():
        same &= own[name].items() <= operations.site_settings(folder / "sites" / name).items()
    if not same:
        raise ConfigError(f"{folder} holds a federation with other sites or data; choose another --folder")
    vacant(folder)
    for path in (folder / "server").glob("state.db*"):
        path.unlink()


def follow(folder: Path, config: Config, out: Path, number: str, tell: Callable[[str], None], patience: float) -> None:
    """Wait until a run is over, saying what becomes of it; complain if it breaks down."""
    home, end, told = place(out, config), time.monotonic() + patience, len(lines(place(out, config)))
    look = time.monotonic() + LOOKING
    while True:
        for line in lines(home)[told:]:
            told, end = told + 1, time.monotonic() + patience
            tell(f"round {line['round'] + 1} of {line['rounds']}")
        if finished(home, config):
            return
        if time.monotonic() > look:
            state, look = operations.status(folder, number), time.monotonic() + LOOKING
            if state.startswith("finished") and not finished(home, config):
                raise FederationError(f"the run broke down ({state}): {operations.last_words(folder, number)}")
        if time.monotonic() > end:
            raise FederationError(f"no round was over within {patience:g} s; see the logs in {folder}")
        time.sleep(0.5)
