"""Before a site takes part: is everything there, right, reachable; and what exactly will leave."""

import shutil
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from . import __version__, keys, operators
from .config import Config
from .errors import FedbeyondError
from .host import Machine, host, own_data
from .setting import method_of

AHEAD, BEHIND = 5, 300  # seconds by which Flower lets a site's clock differ from the server's
ROOM = 2 * 2**30  # bytes
FLOWER = "1.41."


class Finding(NamedTuple):
    """One thing that was looked at."""

    well: bool
    what: str
    told: str


def preflight(bundle: Path, config: Config | None = None, sources: int = 2) -> Iterator[Finding]:
    """Look at a site's folder, machine, data and way to the server; with a run, also at what it would send."""
    yield versions()
    path = bundle.absolute() / operators.SITE_FILE
    try:
        machine = Machine.of(operators.site_settings(bundle))
    except FedbeyondError as error:
        yield Finding(False, "settings", str(error))
        return
    yield Finding(True, "settings", f"{machine.site}, role {machine.role}, from {path}")
    yield secret(bundle / keys.SITE_KEY)
    yield from way(machine.superlink, bundle / keys.CA)
    yield room(machine.folder)
    try:
        domains = own_data(machine)
        ((domain, (_, labels)),) = domains.images.items()
        counts = ", ".join(f"{name} {int((labels == place).sum()):,}" for place, name in enumerate(domains.classes))
        yield Finding(True, "data", f"{len(labels):,} images of {domain}: {counts}")
    except FedbeyondError as error:
        yield Finding(False, "data", str(error))
        return
    if config is not None:
        yield from leaving(machine, config, sources)


def versions() -> Finding:
    """Whether Flower is the one that this was tested with."""
    try:
        found = version("flwr")
    except PackageNotFoundError:
        return Finding(False, "versions", "Flower is not installed; pip install 'fedbeyond[flower]'")
    well = found.startswith(FLOWER)
    return Finding(well, "versions", f"fedbeyond {__version__}, flwr {found}{'' if well else f'; needs {FLOWER}x'}")


def secret(path: Path) -> Finding:
    """Whether the site's key is there and for nobody else's eyes."""
    if not path.exists():
        return Finding(False, "key", f"{path} is missing; it comes with the site's folder")
    others = path.stat().st_mode & 0o077
    return Finding(not others, "key", f"{path} may be read by others; chmod 600 {path}" if others else str(path))


def way(address: str, authority: Path) -> Iterator[Finding]:
    """Whether the server can be reached under the federation's certificate, and whether clocks agree."""
    try:
        context = ssl.create_default_context(cafile=str(authority))
        with urllib.request.urlopen(f"https://{address}/v1/fleet/", timeout=10, context=context) as answer:
            said = answer.headers.get("Date")
    except urllib.error.HTTPError as error:  # it answered: that is all we wanted
        said = error.headers.get("Date")
    except (OSError, ValueError) as error:
        yield Finding(
            False, "server", f"{address} cannot be reached with {authority}: {getattr(error, 'reason', error)}"
        )
        return
    yield Finding(True, "server", f"{address} answers under the federation's certificate")
    if said:
        ahead = round((datetime.now(UTC) - parsedate_to_datetime(said)).total_seconds())
        mend = "" if -BEHIND < ahead < AHEAD else "; Flower refuses a site more than 5 s ahead: let NTP set the clock"
        yield Finding(not mend, "clock", f"{abs(ahead)} s {'ahead of' if ahead > 0 else 'behind'} the server's{mend}")


def room(folder: Path) -> Finding:
    """Whether there is room for what the site keeps."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    return Finding(
        free > ROOM, "disk", f"{free / 2**30:.1f} GiB free for {folder}{'' if free > ROOM else '; make room'}"
    )


def leaving(machine: Machine, config: Config, sources: int) -> Iterator[Finding]:
    """What a run would send from this site, or why it would not run here."""
    try:
        ready = host(machine, config, sources)
    except FedbeyondError as error:
        yield Finding(False, "run", str(error))
        return
    yield Finding(True, "run", f"{config.method}, {config.train.rounds} rounds")
    if ready.site is not None:
        for kind, names in method_of(config).sends.items():
            told = ", ".join(f"{name} ({sent.kind})" for name, sent in names.items())
            yield Finding(True, "leaves", f"in answer to {kind!r}: {told}")
    yield Finding(
        True, "leaves", "in answer to 'evaluate': loss, accuracy, F1, AUC, recall and confusion on its own images"
    )
    yield Finding(True, "leaves", "on enrolling: its name, role, classes, image size and numbers of images")
