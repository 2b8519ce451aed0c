"""Check whether a site or a server is ready: files, settings, connection, clock; and list what a run would send."""

import shutil
import ssl
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ... import __version__
from ...errors import FedbeyondError
from ...experiment.config import Config
from ...images import Dataset
from .. import answer_limits, site_ledger
from ..messages import ASK
from ..policy import Policy
from ..site_config import SiteConfig
from ..site_data import own_domain
from . import certificates, operations
from .addresses import is_loopback
from .finding import Finding
from .folder import FEDERATION_FILE, PROXY, SITE_FILE, FederationConfig, read_federation_config, site_settings
from .key_checks import check_keys, check_mode, check_private_files, check_registration
from .outgoing import list_outgoing

MAX_AHEAD, MAX_BEHIND = 5, 300  # seconds by which Flower allows a site's clock to differ from the server's
MIN_DISK = 2 * 2**30  # bytes
MIN_DAYS = 30  # for which a certificate must still be valid
FLOWER = "1.41."  # the tested version


def preflight(folder: Path, config: Config | None = None) -> Iterator[Finding]:
    """Check the folder of a site or of the server, its machine, and the connection between site and server."""
    yield check_versions()
    yield from check_server(folder, config) if (folder / FEDERATION_FILE).exists() else check_site(folder, config)


def check_site(bundle: Path, config: Config | None = None) -> Iterator[Finding]:
    """Check a site's settings, key, connection, disk, ledger and data; with a run, list what it would send."""
    path = bundle.absolute() / SITE_FILE
    try:
        site_config = SiteConfig.parse(site_settings(bundle))
    except FedbeyondError as error:
        yield Finding(False, "settings", str(error))
        return
    yield Finding(True, "settings", f"{site_config.site}, role {site_config.role}, from {path}")
    yield from check_private_files(site_config, bundle)
    found = list(check_connection(site_config.superlink, bundle / certificates.CA))
    yield from found
    if (bundle / certificates.SITE_KEY).exists() and all(finding.ok for finding in found):
        yield check_registration(site_config, bundle)
    yield check_disk(site_config.folder)
    yield check_spending(site_config)
    try:
        domains = own_domain(site_config)
        ((domain, (_, labels)),) = domains.images.items()
        if site_config.classes:
            yield Finding(True, "classes", f"the federation's: {', '.join(site_config.classes)}")
        counts = ", ".join(f"{name} {int((labels == index).sum()):,}" for index, name in enumerate(domains.classes))
        yield Finding(True, "data", f"{len(labels):,} images of {domain}: {counts}")
        yield describe_groups(domains)
    except FedbeyondError as error:
        yield Finding(False, "data", str(error))
        return
    if config is not None:
        yield from list_outgoing(site_config, config)


def describe_groups(domains: Dataset) -> Finding:
    """Say how many groups of images a site's data name, and how large these are."""
    (note,) = (domains.note(domain) for domain in domains.images)
    if not note.groups:
        return Finding(True, "groups", "none are named; a run with train.disjoint = 'groups' cannot train here")
    sizes = Counter(note.groups).values()
    text = f"{len(sizes):,} (patients, cases or slides), of {min(sizes):,} to {max(sizes):,} images"
    return Finding(True, "groups", f"{text}; their names do not leave the site")


def check_spending(site_config: SiteConfig) -> Finding:
    """Say what has left this site in all runs, by its ledger."""
    try:
        policy = Policy.read(site_config.policy) if site_config.policy else Policy()
        entries = site_ledger.read(site_config.folder)
        text = answer_limits.describe_spending(entries, policy) if entries else "nothing has left yet"
        if policy.max_epsilon is not None and any(entry.subject == ASK and not entry.noise for entry in entries):
            move = f"move {site_ledger.LEDGER} and {site_ledger.HEAD} in {site_config.folder} away"
            text += f"; max_epsilon allows no answer after them: to begin a new ledger, {move}"
            return Finding(False, "spent", text)
        return Finding(True, "spent", text)
    except FedbeyondError as error:
        return Finding(False, "spent", str(error))


def check_server(folder: Path, config: Config | None = None) -> Iterator[Finding]:
    """Check the server's settings, keys, certificate, disk, addresses and connected sites; with a run, also that."""
    try:
        federation = read_federation_config(folder)
    except FedbeyondError as error:
        yield Finding(False, "settings", str(error))
        return
    own, members = folder / "server", federation.members
    size = f"{len(federation.sites)} sites, {len(federation.guests)} guests"
    yield Finding(True, "settings", f"{size}, from {folder / FEDERATION_FILE}")
    yield check_mode("key", own / certificates.SERVER_KEY)
    yield check_certificate(own / certificates.CERTIFICATE)
    yield check_keys(folder, federation)
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
    is_local, outside = is_loopback(federation.bind), federation.address
    try:
        is_open = not is_local or (outside != federation.bind and is_control_reachable(outside, authority))
    except (OSError, ValueError) as error:
        text = f"nothing answers at {outside} ({getattr(error, 'reason', error)}), so whether runs can be started there"
        remedy = f"start the proxy, nginx -p {authority.parent} -c {PROXY}, then check again"
        yield Finding(False, "control", f"{text} is not known; {remedy}")
        return
    if not is_open:
        yield Finding(True, "control", f"runs can be started only on this machine, through {federation.bind}")
        return
    text = f"anyone who can reach {outside if is_local else federation.bind} can start runs"
    remedy = "bind to 127.0.0.1 and let a proxy forward only /v1/fleet/"
    yield Finding(False, "control", f"{text}: Flower does not authenticate this; {remedy}")


def is_control_reachable(address: str, authority: Path) -> bool:
    """Return whether paths other than the sites' own are answered; `OSError` if nothing is.

    A client that can list runs can also start them.
    """
    context = ssl.create_default_context(cafile=str(authority))
    for path, body in (("/docs", None), ("/v1/control/list-runs", b"")):
        request = urllib.request.Request(f"https://{address}{path}", body, {"Content-Type": "application/protobuf"})
        try:
            with urllib.request.urlopen(request, timeout=10, context=context) as answer:
                if answer.status == 200:
                    return True
        except urllib.error.HTTPError:
            continue
    return False


def check_run(federation: FederationConfig, config: Config) -> Finding:
    """Check whether this federation can execute a run, as far as the server can know."""
    try:
        operations.ensure_executable(federation, config)
    except FedbeyondError as error:
        return Finding(False, "run", str(error))
    return Finding(True, "run", f"{config.method}, {config.train.rounds} rounds")


def check_certificate(path: Path) -> Finding:
    """Check that a certificate exists and does not expire soon."""
    try:
        days = (certificates.expiry(path) - datetime.now(UTC)).days
    except (OSError, ValueError) as error:
        return Finding(False, "validity", f"{path} cannot be read: {error}")
    renewal = (
        "create a new federation folder, send its sites' folders, and register the keys that the sites create there"
    )
    remedy = "" if days > MIN_DAYS else f"; {renewal}"
    return Finding(not remedy, "validity", f"{path} is valid for {days} days{remedy}")


def check_versions() -> Finding:
    """Check that the installed version of Flower is the tested one."""
    try:
        installed = version("flwr")
    except PackageNotFoundError:
        return Finding(False, "versions", "Flower is not installed; pip install 'fedbeyond[flower]'")
    remedy = "" if installed.startswith(FLOWER) else f"; needs {FLOWER}x"
    return Finding(not remedy, "versions", f"fedbeyond {__version__}, flwr {installed}{remedy}")


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
