"""The operations of a federation, thin over Flower's commands: write its folder, start server and sites, submit runs.

A federation is a folder: `federation.toml` and `server/` stay with its operator; each `sites/NAME/` goes to that site.
Nothing here imports Flower: its programs are started as processes.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from ..._io import write
from ...errors import ConfigError, FederationError
from ...experiment.config import Config
from ..site_config import SiteConfig
from . import certificates, nginx

# no telemetry, no update check, no installation of packages during a run
SILENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
FEDERATION_FILE, SITE_FILE, LINK = "federation.toml", "site.toml", "federation"
PROXY = "nginx.conf"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")  # loopback hosts: reachable only from this machine


class FederationConfig(NamedTuple):
    """The settings of a federation, which its members agreed on."""

    address: str  # host:port at which sites reach the server
    sites: tuple[str, ...]
    guests: tuple[str, ...] = ()
    bind: str = "127.0.0.1:8443"  # where the server listens: only on this machine, behind a proxy
    deadline: float = 3600.0  # seconds for a reply
    classes: tuple[str, ...] = ()  # of every site's images; (): not agreed on in advance


def init(folder: Path, federation: FederationConfig, own: Mapping[str, Mapping[str, Any]] | None = None) -> None:
    """Write a federation's folder: certificates, the proxy's configuration, and a key and settings for each site."""
    members = (*federation.sites, *federation.guests)
    if not federation.sites:
        raise ConfigError("a federation needs at least one site that trains; name it with --site")
    for name in members:
        if not re.fullmatch(r"[\w-]+", name):
            raise ConfigError(f"a site's name may contain only alphanumeric characters, - and _, not {name!r}")
        if members.count(name) > 1:
            raise ConfigError(f"the sites' names must differ, and {name!r} is given twice; rename one")
    for address in (federation.address, federation.bind):
        if not re.fullmatch(r".+:\d+", address):
            raise ConfigError(f"an address must be host:port, as in link.example.org:443, not {address!r}")
    (_, port), (host, bind_port) = (address.rsplit(":", 1) for address in (federation.address, federation.bind))
    if federation.address != federation.bind and port == bind_port and host in LOOPBACK:
        raise ConfigError(
            f"the proxy at {federation.address} and the server at {federation.bind} cannot both use port {port} of one "
            f"machine; give the server another port, as in --bind 127.0.0.1:{int(port) + 1}"
        )
    hosts = [address.rpartition(":")[0] for address in (federation.address, federation.bind)]
    certificates.write_certificates(folder / "server", *hosts, "127.0.0.1", "localhost")
    if federation.address != federation.bind:
        proxy = nginx.nginx_config(federation.address, federation.bind)
        certificates.write_new(folder / "server" / PROXY, proxy.encode())
    authority = (folder / "server" / certificates.CA).read_bytes()
    for name in members:
        bundle = folder / "sites" / name
        certificates.write_new(folder / "server" / "sites" / f"{name}.pub", certificates.write_key_pair(bundle))
        certificates.write_new(bundle / certificates.CA, authority)
        settings: dict[str, Any] = {"site": name, "role": "train" if name in federation.sites else "guest"}
        settings |= {"superlink": federation.address, "data": "folder(root='/data')", "folder": "state"}
        if name in federation.sites:
            certificates.write_new(bundle / certificates.SECRET, os.urandom(32), 0o600)  # for the site's noise under dp
            settings |= {"secret": certificates.SECRET}
        settings |= {"classes": federation.classes} if federation.classes else {}
        certificates.write_new(bundle / SITE_FILE, tomli_w.dumps(settings | dict((own or {}).get(name, {}))).encode())
    certificates.write_new(folder / FEDERATION_FILE, tomli_w.dumps(federation._asdict()).encode())


def read_federation_config(folder: Path) -> FederationConfig:
    """Read the settings of the federation in a folder."""
    table = {"classes": (), **_read_toml(folder / FEDERATION_FILE)}
    try:
        sites, guests, classes = (tuple(table[key]) for key in ("sites", "guests", "classes"))
        return FederationConfig(table["address"], sites, guests, table["bind"], float(table["deadline"]), classes)
    except KeyError as error:
        raise ConfigError(
            f"{folder / FEDERATION_FILE} lacks {error}; 'fedbeyond federation init' writes a complete file"
        ) from None


def link_command(folder: Path) -> list[str]:
    """Return the command that starts the server, always with TLS and with authentication of sites."""
    federation, server = read_federation_config(folder), folder.absolute() / "server"
    host, _, port = federation.bind.rpartition(":")
    words = ["--host", host, "--port", port, "--database", str(server / "state.db")]
    words += ["--ssl-ca-certfile", str(server / certificates.CA)]
    words += ["--ssl-certfile", str(server / certificates.CERTIFICATE)]
    words += ["--ssl-keyfile", str(server / certificates.SERVER_KEY)]
    words += ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
    return [program("flower-superlink"), *words]


def node_command(bundle: Path, port: int) -> list[str]:
    """Return the command that starts a site; the processes of the site use `port`, on the site's machine only."""
    bundle, own = bundle.absolute(), site_settings(bundle)
    SiteConfig.parse(own)  # report invalid settings here, not at the first message
    Path(own["folder"]).mkdir(mode=0o700, parents=True, exist_ok=True)
    node = Path(own["folder"]) / "node.toml"
    own |= {"classes": json.dumps(own["classes"])} if "classes" in own else {}  # Flower's config has no lists
    write(node, tomli_w.dumps(own).encode())
    words = ["--superlink", own["superlink"], "--node-config", str(node), "--host", "127.0.0.1", "--port", str(port)]
    words += ["--root-certificates", str(bundle / certificates.CA)]
    words += ["--auth-supernode-private-key", str(bundle / certificates.SITE_KEY)]
    return [program("flower-supernode"), *words]


def site_settings(bundle: Path) -> dict[str, Any]:
    """Read the settings of a site; paths are relative to its folder."""
    own = _read_toml(bundle / SITE_FILE)
    return own | {key: str(bundle.absolute() / own[key]) for key in ("folder", "policy", "secret") if own.get(key)}


def register(folder: Path) -> None:
    """Register the public keys of all sites at the running server; keys that it already has are kept."""
    for path in sorted((folder / "server" / "sites").glob("*.pub")):
        try:
            flwr(folder, "supernode", "register", str(path.absolute()), LINK, "--name", path.stem)
        except FederationError as error:
            if "already" not in str(error):
                raise


def submit(folder: Path, config: Config, out: Path, threads: int = 1) -> str:
    """Start a run, or resume it, and return Flower's number of it."""
    from ..node import federated_method

    federation = read_federation_config(folder)
    federated_method(config, len(federation.sites))
    identity = {key: value for key, value in config.identity().items() if value is not None}
    run_config: dict[str, Any] = {"config": json.dumps(identity), "sites": ",".join(federation.sites)}
    run_config |= {"guests": ",".join(federation.guests), "out": str(out.absolute())}
    run_config |= {"deadline": federation.deadline, "threads": threads}
    app = folder / "server" / "app"
    app.mkdir(mode=0o700, exist_ok=True)
    write(app / "fedbeyond_app.py", APP.encode())
    write(app / "pyproject.toml", tomli_w.dumps(project(run_config)).encode())
    answer = json.loads(flwr(folder, "run", str(app.absolute()), LINK, "--format", "json"))
    if not answer.get("success"):
        reason = answer.get("error-message", answer)
        raise FederationError(
            f"the server did not accept the run: {reason}; if it is not running, start it: fedbeyond serve {folder}"
        )
    return str(answer["run-id"])


def status(folder: Path, number: str) -> str:
    """Return Flower's status of a run, such as running or finished:completed."""
    answer = json.loads(flwr(folder, "list", LINK, "--run-id", number, "--format", "json"))
    runs = answer.get("runs") or [{}]
    return str(runs[0].get("status", "unknown"))


def count_connected(folder: Path) -> int:
    """Return the number of sites that are connected now; Flower does not report their names."""
    answer = json.loads(flwr(folder, "supernode", "list", LINK, "--format", "json"))
    if not answer.get("success"):
        raise FederationError(f"the server does not answer; start it: fedbeyond serve {folder}")
    return sum(node.get("status") == "online" for node in answer.get("nodes", ()))


def log_tail(folder: Path, number: str) -> str:
    """Return the end of the log of a run's server app."""
    return flwr(folder, "log", number, LINK, "--show").strip()[-800:]


APP = '''"""Flower's run config describes the run; all code is in the fedbeyond package installed on each machine."""

from fedbeyond.flower.app import client_app, server_app

server = server_app()
client = client_app()
'''


def project(run_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pyproject.toml of the app that Flower starts for a run."""
    app = {
        "publisher": "fedbeyond",
        "components": {"serverapp": "fedbeyond_app:server", "clientapp": "fedbeyond_app:client"},
        "config": run_config,
    }
    about = {"name": "fedbeyond-run", "version": "1.0.0", "description": "A run of fedbeyond", "license": "Apache-2.0"}
    return {"project": about | {"dependencies": ["flwr>=1.41,<1.42"]}, "tool": {"flwr": {"app": app}}}


def flwr(folder: Path, *words: str) -> str:
    """Run the command `flwr` for this federation's server, and return what it prints; `FederationError` if it fails."""
    home, federation = folder.absolute() / "server" / "flower", read_federation_config(folder)
    home.mkdir(mode=0o700, exist_ok=True)
    link = {"address": federation.bind, "root-certificates": str(folder.absolute() / "server" / certificates.CA)}
    write(home / "config.toml", tomli_w.dumps({"superlink": {"default": LINK, LINK: link}}).encode())
    variables = environment(home) | {"COLUMNS": "160"}  # narrower tables would truncate words
    ended = subprocess.run(
        [program("flwr"), *words], env=variables, capture_output=True, text=True, timeout=120, check=False
    )
    if ended.returncode:
        raise FederationError(f"flwr {' '.join(words[:2])} failed: {(ended.stderr or ended.stdout).strip()[-600:]}")
    return ended.stdout


def environment(home: Path) -> dict[str, str]:
    """Return the environment of Flower's programs: no telemetry, their folder, and where their helper programs are."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return os.environ | SILENT | {"FLWR_HOME": str(home), "PATH": path}


def program(name: str) -> str:
    """Return the path of one of Flower's programs, installed with this Python; `ConfigError` if it is missing."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise ConfigError(f"Flower is not installed ({name} is missing); pip install 'fedbeyond[flower]'")
    return str(path)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read ({error}); give a folder that 'fedbeyond federation init' wrote"
        ) from None
