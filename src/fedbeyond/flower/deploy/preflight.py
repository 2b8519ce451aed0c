"""Check whether a site or a server is ready: files, settings, connection, clock; and list what a run would send."""

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
from ...classifier import shapes_of
from ...engine.reestimation import levels_of
from ...errors import FedbeyondError
from ...experiment.config import Config
from ...spec import unseen_domains
from ...wrappers.privacy import describe_guarantee
from ..node import Node, federated_method, prepare_node
from ..site_config import SiteConfig
from ..site_data import own_domain
from . import certificates, operations
from .operations import FEDERATION_FILE, LOOPBACK, FederationConfig

MAX_AHEAD, MAX_BEHIND = 5, 300  # seconds by which Flower allows a site's clock to differ from the server's
MIN_DISK = 2 * 2**30  # bytes
MIN_DAYS = 30  # for which a certificate must still be valid
FLOWER = "1.41."  # the tested version


class Finding(NamedTuple):
    """The result of one check."""

    ok: bool
    topic: str
    text: str


def preflight(folder: Path, config: Config | None = None) -> Iterator[Finding]:
    """Check the folder of a site or of the server, its machine, and the connection between site and server."""
    yield check_versions()
    yield from check_server(folder, config) if (folder / FEDERATION_FILE).exists() else check_site(folder, config)


def check_site(bundle: Path, config: Config | None = None) -> Iterator[Finding]:
    """Check a site's settings, key, connection to the server, disk and data; with a run, list what it would send."""
    path = bundle.absolute() / operations.SITE_FILE
    try:
        site_config = SiteConfig.parse(operations.site_settings(bundle))
    except FedbeyondError as error:
        yield Finding(False, "settings", str(error))
        return
    yield Finding(True, "settings", f"{site_config.site}, role {site_config.role}, from {path}")
    yield check_key(bundle / certificates.SITE_KEY)
    yield from check_connection(site_config.superlink, bundle / certificates.CA)
    yield check_disk(site_config.folder)
    try:
        domains = own_domain(site_config)
        ((domain, (_, labels)),) = domains.images.items()
        if site_config.classes:
            yield Finding(True, "classes", f"the federation's: {', '.join(site_config.classes)}")
        counts = ", ".join(f"{name} {int((labels == index).sum()):,}" for index, name in enumerate(domains.classes))
        yield Finding(True, "data", f"{len(labels):,} images of {domain}: {counts}")
    except FedbeyondError as error:
        yield Finding(False, "data", str(error))
        return
    if config is not None:
        yield from list_outgoing(site_config, config)


def check_server(folder: Path, config: Config | None = None) -> Iterator[Finding]:
    """Check the server's settings, keys, certificate, disk, addresses and connected sites; with a run, also that."""
    try:
        federation = operations.read_federation_config(folder)
    except FedbeyondError as error:
        yield Finding(False, "settings", str(error))
        return
    own, members = folder / "server", (*federation.sites, *federation.guests)
    size = f"{len(federation.sites)} sites, {len(federation.guests)} guests"
    yield Finding(True, "settings", f"{size}, from {folder / FEDERATION_FILE}")
    yield check_key(own / certificates.SERVER_KEY)
    yield check_certificate(own / certificates.CERTIFICATE)
    keyless = ", ".join(name for name in members if not (own / "sites" / f"{name}.pub").exists())
    yield Finding(not keyless, "keys", f"no public key of {keyless} in {own / 'sites'}" if keyless else "of all sites")
    yield check_disk(own)
    yield from check_addresses(federation, own / certificates.CA)
    try:
        connected = operations.count_connected(folder)
        text = f"{connected} are connected, {len(members)} belong to the federation"
        yield Finding(connected >= len(members), "sites", text)
    except FedbeyondError:
        yield Finding(False, "sites", f"no site can connect; start the server: fedbeyond serve {folder}")
    if config is not None:
        yield check_run(federation, config)


def check_addresses(federation: FederationConfig, authority: Path) -> Iterator[Finding]:
    """Check that the server answers at its addresses, and that runs can be started only on its machine."""
    yield next(check_connection(federation.bind, authority))
    if federation.address != federation.bind:
        yield next(check_connection(federation.address, authority))
    is_local = federation.bind.rpartition(":")[0] in LOOPBACK
    if is_local and (federation.address == federation.bind or not is_control_reachable(federation.address, authority)):
        yield Finding(True, "control", f"runs can be started only on this machine, through {federation.bind}")
        return
    text = f"anyone who can reach {federation.address if is_local else federation.bind} can start runs"
    remedy = "bind to 127.0.0.1 and let a proxy forward only /v1/fleet/"
    yield Finding(False, "control", f"{text}: Flower does not authenticate this; {remedy}")


def is_control_reachable(address: str, authority: Path) -> bool:
    """Return whether paths other than the sites' own are answered: a client that can list runs can also start them."""
    for path, body in (("/docs", None), ("/v1/control/list-runs", b"")):
        request = urllib.request.Request(f"https://{address}{path}", body, {"Content-Type": "application/protobuf"})
        try:
            context = ssl.create_default_context(cafile=str(authority))
            with urllib.request.urlopen(request, timeout=10, context=context) as answer:
                if answer.status == 200:
                    return True
        except (OSError, ValueError):
            continue
    return False


def check_run(federation: FederationConfig, config: Config) -> Finding:
    """Check whether this federation can execute a run, as far as the server can know."""
    try:
        federated_method(config, len(federation.sites))
    except FedbeyondError as error:
        return Finding(False, "run", str(error))
    text = f"{config.method}, {config.train.rounds} rounds"
    if not federation.guests or {*unseen_domains(config.target)} == {*federation.guests}:
        return Finding(True, "run", text)
    text += f"; target is {config.target!r}, but the guests are {', '.join(federation.guests)}"
    return Finding(False, "run", f"{text}: set target to the guests, which reports show as unseen")


def check_certificate(path: Path) -> Finding:
    """Check that a certificate exists and does not expire soon."""
    try:
        days = (certificates.expiry(path) - datetime.now(UTC)).days
    except (OSError, ValueError) as error:
        return Finding(False, "validity", f"{path} cannot be read: {error}")
    remedy = "" if days > MIN_DAYS else "; create a new federation folder, and distribute its keys"
    return Finding(not remedy, "validity", f"{path} is valid for {days} days{remedy}")


def check_versions() -> Finding:
    """Check that the installed version of Flower is the tested one."""
    try:
        installed = version("flwr")
    except PackageNotFoundError:
        return Finding(False, "versions", "Flower is not installed; pip install 'fedbeyond[flower]'")
    remedy = "" if installed.startswith(FLOWER) else f"; needs {FLOWER}x"
    return Finding(not remedy, "versions", f"fedbeyond {__version__}, flwr {installed}{remedy}")


def check_key(path: Path) -> Finding:
    """Check that a private key exists and that only its owner can read it."""
    if not path.exists():
        text = f"{path} is missing; copy it from the folder that 'fedbeyond federation init' wrote"
        return Finding(False, "key", text)
    is_exposed = bool(path.stat().st_mode & 0o077)
    text = f"other users can read {path}; run chmod 600 {path}" if is_exposed else str(path)
    return Finding(not is_exposed, "key", text)


def check_connection(address: str, authority: Path) -> Iterator[Finding]:
    """Check that the server is reachable with the federation's certificate, and that the clocks agree."""
    try:
        context = ssl.create_default_context(cafile=str(authority))
        with urllib.request.urlopen(f"https://{address}/v1/fleet/", timeout=10, context=context) as answer:
            date = answer.headers.get("Date")
    except urllib.error.HTTPError as error:  # any answer is enough
        date = error.headers.get("Date")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        yield Finding(False, "server", f"{address} cannot be reached with {authority}: {reason}")
        return
    yield Finding(True, "server", f"{address} answers with the federation's certificate")
    if date:
        ahead = round((datetime.now(UTC) - parsedate_to_datetime(date)).total_seconds())
        ok = -MAX_BEHIND < ahead < MAX_AHEAD
        remedy = "" if ok else "; Flower rejects a site more than 5 s ahead: set the clock by NTP"
        yield Finding(ok, "clock", f"{abs(ahead)} s {'ahead of' if ahead > 0 else 'behind'} the server's{remedy}")


def check_disk(folder: Path) -> Finding:
    """Check that there is enough disk space for the files of a site or of the server."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    remedy = "" if free > MIN_DISK else f"; free {MIN_DISK / 2**30:g} GiB or more"
    return Finding(not remedy, "disk", f"{free / 2**30:.1f} GiB free for {folder}{remedy}")


def list_outgoing(site_config: SiteConfig, config: Config) -> Iterator[Finding]:
    """List what a run would send from this site, or why it cannot run here."""
    try:
        node = prepare_node(site_config, config, sources=2)  # how many there will be is not known here
    except FedbeyondError as error:
        yield Finding(False, "run", str(error))
        return
    yield Finding(True, "run", f"{config.method}, {config.train.rounds} rounds")
    outgoing = [f"on enrolling: {', '.join(node.facts)}, bytes of private state"]
    if node.site is not None:
        outgoing += [f"in reply to {kind!r}: {', '.join(describe_reply(node, kind))}" for kind in node.method.sends]
        if levels := levels_of(node.method, node.net, node.facts["shape"]):
            text = "means and deviations of the inputs of BatchNorm layers (statistics)"
            outgoing.append(f"in reply to 'statistics': {text}, in {len(levels)} exchanges after evaluated rounds")
        outgoing.append("with each of these: the site's name, number of training images, bytes of private state")
    yield from (Finding(True, "leaves", text) for text in outgoing)
    if node.site is not None and (guarantee := describe_guarantee(node.method, config.train.rounds)):
        yield Finding(True, "privacy", guarantee)
    if node.policy.scores:
        text = "loss, accuracy, F1, AUC, recall and confusion on the site's own images"
        yield Finding(True, "leaves", f"in reply to 'evaluate': {text}")
    yield Finding(True, "leaves", "on an error: the site's name, and the error message")


def describe_reply(node: Node, kind: str) -> Iterator[str]:
    """List what leaves in reply to a request: name, kind and, except for scalars, size."""
    assert node.site
    nets = {name: shapes_of(node.site.nets[name]) for name in node.method.shared}
    for name, content in node.method.sends[kind].items():
        size = "" if content.kind == "scalars" else f", {tree.size(content.like(nets, {})):,} bytes"
        yield f"{name} ({content.kind}{size})"
