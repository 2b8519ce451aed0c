"""The folder of a federation: check its settings, write it, read it.

`federation.toml` and `server/` stay with the federation's operator; each `sites/NAME/` goes to that site. No private
key of a site is in it: each site creates its own (`keys.enrol`).
"""

import math
import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import tomli_w

from ...errors import ConfigError, nearest
from . import certificates, nginx
from .addresses import is_loopback, is_unspecified, split_address

FEDERATION_FILE, SITE_FILE, POLICY_FILE, STEPS_FILE = "federation.toml", "site.toml", "policy.toml", "README.txt"
PROXY = "nginx.conf"
KEEP_DAYS = 90  # that a site keeps the private state of a run which sends no more messages
MAX_NAME = 64  # bytes of a site's name, which is also the name of files
RESERVED = {"server", "each"} | {"con", "prn", "aux", "nul"}  # words of commands; names that Windows allows no file
RESERVED |= {f"{device}{number}" for device in ("com", "lpt") for number in range(1, 10)}


class FederationConfig(NamedTuple):
    """The settings of a federation, which its members agreed on."""

    address: str  # host:port at which sites reach the server
    sites: tuple[str, ...]
    guests: tuple[str, ...] = ()
    bind: str = "127.0.0.1:8443"  # where the server listens: only on this machine, behind a proxy
    deadline: float = 3600.0  # seconds for a reply
    classes: tuple[str, ...] = ()  # of every site's images; (): not agreed on in advance
    images: Mapping[str, int] = {}  # how many a site has in all its splits; a site not named here may claim any number

    @property
    def members(self) -> tuple[str, ...]:
        return (*self.sites, *self.guests)


def init(folder: Path, federation: FederationConfig, own: Mapping[str, Mapping[str, Any]] | None = None) -> None:
    """Write a federation's folder: certificates, the proxy's configuration, and a folder of settings for each site."""
    ensure_valid(federation)
    for name in (FEDERATION_FILE, "server", "sites"):
        if (folder / name).exists():
            raise ConfigError(f"{folder / name} already exists; choose another folder, or delete that one")
    hosts = [split_address(address)[0] for address in (federation.address, federation.bind)]
    certificates.write_certificates(folder / "server", *hosts, "127.0.0.1", "localhost")
    if federation.address != federation.bind:
        proxy = nginx.nginx_config(federation.address, federation.bind)
        certificates.write_new(folder / "server" / PROXY, proxy.encode())
    for name in federation.members:
        write_bundle(folder, federation, name, (own or {}).get(name, {}))
    certificates.write_new(folder / FEDERATION_FILE, tomli_w.dumps(federation._asdict()).encode())


def write_bundle(folder: Path, federation: FederationConfig, name: str, own: Mapping[str, Any]) -> None:
    """Write the folder that goes to a site: certificate authority, settings, a policy to edit, and what to do next."""
    bundle = folder / "sites" / name
    settings: dict[str, Any] = {"site": name, "role": "train" if name in federation.sites else "guest"}
    settings |= {"superlink": federation.address, "data": "folder(root='/data')", "folder": "state"}
    settings |= {"policy": POLICY_FILE, "keep_days": KEEP_DAYS}
    settings |= {"secret": certificates.SECRET} if name in federation.sites else {}  # which `keys.enrol` creates
    settings |= {"classes": federation.classes} if federation.classes else {}
    certificates.write_new(bundle / certificates.CA, (folder / "server" / certificates.CA).read_bytes())
    certificates.write_new(bundle / SITE_FILE, tomli_w.dumps(settings | dict(own)).encode())
    certificates.write_new(bundle / POLICY_FILE, _template(POLICY_FILE).encode())
    steps = Template(_template(STEPS_FILE)).substitute(site=name, address=federation.address)
    certificates.write_new(bundle / STEPS_FILE, steps.encode())


def ensure_valid(federation: FederationConfig) -> None:
    """Raise `ConfigError` if a federation cannot have these settings."""
    if not federation.sites:
        raise ConfigError("a federation needs at least one site that trains; name it with --site")
    ensure_valid_names(federation.members)
    for address in (federation.address, federation.bind):
        split_address(address)
    if is_unspecified(federation.address):
        raise ConfigError(f"sites cannot reach the server at {federation.address}; give the server's name or address")
    (_, port), (_, bind_port) = split_address(federation.address), split_address(federation.bind)
    if federation.address != federation.bind and port == bind_port and is_loopback(federation.bind):
        free = port + 1 if port < 65535 else port - 1
        raise ConfigError(
            f"the proxy at {federation.address} and the server at {federation.bind} cannot both use port {port} of one "
            f"machine; give the server another port, as in --bind 127.0.0.1:{free}"
        )
    if not (math.isfinite(federation.deadline) and federation.deadline > 0):
        raise ConfigError(f"deadline must be a number of seconds above 0, not {federation.deadline}")
    for name in federation.classes:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"a class must be a name, not {name!r}")
        if federation.classes.count(name) > 1:
            raise ConfigError(f"the classes must differ, and {name!r} is given twice; leave one out")


def ensure_valid_names(names: tuple[str, ...]) -> None:
    """Raise `ConfigError` if sites cannot have these names, which are also names of files."""
    for name in names:
        if not re.fullmatch(r"\w[\w-]*", name):
            raise ConfigError(
                f"a site's name may contain only alphanumeric characters, - and _, and not begin with -; not {name!r}"
            )
        if (size := len(name.encode())) > MAX_NAME:
            raise ConfigError(f"a site's name may have at most {MAX_NAME} bytes, and {name!r} has {size}; shorten it")
        if name.lower() in RESERVED:
            raise ConfigError(f"{name!r} is reserved and cannot be the name of a site; choose another")
        same = sorted(other for other in names if other.casefold() == name.casefold())
        if same[0] != same[-1]:
            raise ConfigError(f"{same[0]!r} and {same[-1]!r} differ only in case, as files may not; rename one")
        if len(same) > 1:
            raise ConfigError(f"the sites' names must differ, and {name!r} is given twice; rename one")


def read_federation_config(folder: Path) -> FederationConfig:
    """Read the settings of the federation in a folder."""
    path = folder / FEDERATION_FILE
    table = {"classes": (), "images": {}, **_read_toml(path)}
    try:
        sites, guests, classes = (tuple(table[key]) for key in ("sites", "guests", "classes"))
        images = table["images"]
        if not isinstance(images, dict) or not all(type(count) is int and count > 0 for count in images.values()):
            raise ConfigError(
                "images must be a table of sites and how many images each has, as in "
                f"images = {{ {sites[0] if sites else 'north'} = 1200 }}"
            )
        for name in images:
            if name not in sites:
                raise ConfigError(f"images: no site is {name!r}; {nearest(name, sites)}")
        deadline = float(table["deadline"])
        federation = FederationConfig(table["address"], sites, guests, table["bind"], deadline, classes, images)
        ensure_valid(federation)
        return federation
    except KeyError as error:
        raise ConfigError(f"{path} lacks {error}; 'fedbeyond federation init' writes a complete file") from None
    except (ConfigError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None


def site_settings(bundle: Path) -> dict[str, Any]:
    """Read the settings of a site; paths are relative to its folder."""
    own = _read_toml(bundle / SITE_FILE)
    return own | {key: str(bundle.absolute() / own[key]) for key in ("folder", "policy", "secret") if own.get(key)}


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except tomllib.TOMLDecodeError as error:
        is_escape = "Unescaped '\\'" in str(error)
        hint = "; in double quotes a backslash is written twice, as in groups='^(\\\\w+)_'" if is_escape else ""
        raise ConfigError(f"{path} cannot be read ({error}); fix it there{hint}") from None
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error}); give a folder that 'fedbeyond federation init' wrote"
        ) from None


def _template(name: str) -> str:
    """Return the text of a file that is written for each site."""
    return (files(__package__) / f"site_{name}").read_text("utf-8")
