"""Before a site takes part, or a server serves: is everything there, right, reachable; what exactly will leave."""

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

from ... import __version__, tree
from ...engine.reestimation import levels_of
from ...errors import FedbeyondError
from ...experiment.build import outlines
from ...experiment.config import Config
from ...spec import unseen_domains
from ...wrappers.privacy import promise
from ..node import Host, host, own_data, playable
from ..site_config import Machine
from . import certificates, operations
from .operations import CHARTER, HERE, Charter

AHEAD, BEHIND = 5, 300  # seconds by which Flower lets a site's clock differ from the server's
ROOM = 2 * 2**30  # bytes
SOON = 30  # days before a certificate ends that it is said
FLOWER = "1.41."


class Finding(NamedTuple):
    """One thing that was looked at."""

    well: bool
    what: str
    told: str


def preflight(folder: Path, config: Config | None = None) -> Iterator[Finding]:
    """Look at the folder of a site, or of the server, at its machine and at the way between them."""
    yield versions()
    yield from server(folder, config) if (folder / CHARTER).exists() else site(folder, config)


def site(bundle: Path, config: Config | None = None, sources: int = 2) -> Iterator[Finding]:
    """A site's settings, key, way to the server, disk and data; with a run, also what it would send."""
    path = bundle.absolute() / operations.SITE_FILE
    try:
        machine = Machine.of(operations.site_settings(bundle))
    except FedbeyondError as error:
        yield Finding(False, "settings", str(error))
        return
    yield Finding(True, "settings", f"{machine.site}, role {machine.role}, from {path}")
    yield secret(bundle / certificates.SITE_KEY)
    yield from way(machine.superlink, bundle / certificates.CA)
    yield room(machine.folder)
    try:
        domains = own_data(machine)
        ((domain, (_, labels)),) = domains.images.items()
        if machine.classes:
            yield Finding(True, "classes", f"the federation's: {', '.join(machine.classes)}")
        counts = ", ".join(f"{name} {int((labels == place).sum()):,}" for place, name in enumerate(domains.classes))
        yield Finding(True, "data", f"{len(labels):,} images of {domain}: {counts}")
    except FedbeyondError as error:
        yield Finding(False, "data", str(error))
        return
    if config is not None:
        yield from leaving(machine, config, sources)


def server(folder: Path, config: Config | None = None) -> Iterator[Finding]:
    """The server's charter, keys, certificate and disk, who is there; with a run, also whether it could be played."""
    try:
        charter = operations.charter_of(folder)
    except FedbeyondError as error:
        yield Finding(False, "settings", str(error))
        return
    own, everybody = folder / "server", (*charter.sites, *charter.guests)
    yield Finding(
        True, "settings", f"{len(charter.sites)} sites, {len(charter.guests)} guests, from {folder / CHARTER}"
    )
    yield secret(own / certificates.SERVER_KEY)
    yield lasting(own / certificates.CERTIFICATE)
    keyless = [name for name in everybody if not (own / "sites" / f"{name}.pub").exists()]
    yield Finding(
        not keyless, "keys", f"no public key of {', '.join(keyless)} in {own / 'sites'}" if keyless else "of all sites"
    )
    yield room(own)
    yield from doors(charter, own / certificates.CA)
    try:
        there = operations.online(folder)
        yield Finding(
            there >= len(everybody), "sites", f"{there} are connected, {len(everybody)} belong to the federation"
        )
    except FedbeyondError:
        yield Finding(False, "sites", f"nobody can be connected; start the server: fedbeyond serve {folder}")
    if config is not None:
        yield run_of(charter, config)


def doors(charter: Charter, authority: Path) -> Iterator[Finding]:
    """Whether the server answers where it should, and lets nobody start runs from elsewhere."""
    yield next(way(charter.bind, authority))
    if charter.address != charter.bind:
        yield next(way(charter.address, authority))
    apart = charter.bind.rpartition(":")[0] in HERE
    if apart and (charter.address == charter.bind or not answers(charter.address, authority)):
        yield Finding(True, "control", f"runs can be started on this machine alone, through {charter.bind}")
        return
    yield Finding(
        False,
        "control",
        f"whoever reaches {charter.address if apart else charter.bind} can start runs, which Flower does not guard; "
        "bind to 127.0.0.1 and let a proxy forward /v1/fleet/ alone",
    )


def answers(address: str, authority: Path) -> bool:
    """Whether more than the sites' own path is to be had there: what lists runs would start them, too."""
    for path, body in (("/docs", None), ("/v1/control/list-runs", b"")):
        asked = urllib.request.Request(f"https://{address}{path}", body, {"Content-Type": "application/protobuf"})
        try:
            context = ssl.create_default_context(cafile=str(authority))
            with urllib.request.urlopen(asked, timeout=10, context=context) as answer:
                if answer.status == 200:
                    return True
        except (OSError, ValueError):
            continue
    return False


def run_of(charter: Charter, config: Config) -> Finding:
    """Whether a run can be played on this federation, as far as the server knows."""
    unseen = unseen_domains(config.target)
    try:
        playable(config, len(charter.sites))
    except FedbeyondError as error:
        return Finding(False, "run", str(error))
    strange = sorted({*unseen} ^ {*charter.guests})
    told = f"{config.method}, {config.train.rounds} rounds"
    if charter.guests and strange:
        told += (
            f"; target = {config.target!r}, and the guests are {', '.join(charter.guests)}: reports call them unseen"
        )
    return Finding(not (charter.guests and strange), "run", told)


def lasting(path: Path) -> Finding:
    """Whether a certificate is there and lasts."""
    try:
        days = (certificates.end(path) - datetime.now(UTC)).days
    except (OSError, ValueError) as error:
        return Finding(False, "validity", f"{path} cannot be read: {error}")
    mend = "" if days > SOON else "; make a new federation folder, and hand out its keys"
    return Finding(not mend, "validity", f"{path} is valid for {days} days{mend}")


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
    yield Finding(True, "leaves", f"on enrolling: {', '.join(ready.facts)}, bytes of private state")
    if ready.site is not None:
        for kind in ready.method.sends:
            yield Finding(True, "leaves", f"in answer to {kind!r}: {', '.join(sent(ready, kind))}")
        if levels := levels_of(ready.method, ready.net, ready.facts["shape"]):
            layers = "means and deviations of what BatchNorm layers are given"
            told = (
                f"in answer to 'statistics': {layers} (statistics), in {len(levels)} exchanges after evaluated rounds"
            )
            yield Finding(True, "leaves", told)
        yield Finding(True, "leaves", "with each of these: its name, number of training images, bytes of private state")
        promised = promise(ready.method, config.train.rounds)
        yield from [Finding(True, "privacy", promised)] if promised else []
    if ready.policy.scores:
        yield Finding(
            True, "leaves", "in answer to 'evaluate': loss, accuracy, F1, AUC, recall and confusion on its own images"
        )
    yield Finding(True, "leaves", "when something fails: its name, and the error in words")


def sent(ready: Host, kind: str) -> Iterator[str]:
    """What leaves in answer to a request, by name, with its kind and, but for a few numbers, how large it is."""
    assert ready.site
    nets = outlines(ready.method, ready.site.nets)
    for name, what in ready.method.sends[kind].items():
        size = "" if what.kind == "scalars" else f", {tree.size(what.like(nets, {})):,} bytes"
        yield f"{name} ({what.kind}{size})"
