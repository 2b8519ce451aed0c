"""What operators do, thin over Flower's own commands: make a federation's folder, serve, join, submit, try it all here.

A federation is a folder: `federation.toml` and `server/` stay with who runs it; each `sites/NAME/` goes to that site.
Nothing here imports Flower: its programs are started as anybody would start them.
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

from ..._io import write
from ...errors import ConfigError, FederationError
from ...experiment.config import Config
from ..site_config import Machine
from . import certificates, nginx

# nothing is reported to anybody, nothing is installed while a run goes on
SILENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
CHARTER, SITE_FILE, LINK = "federation.toml", "site.toml", "federation"
PROXY = "nginx.conf"
HERE = ("127.0.0.1", "localhost", "[::1]")  # hosts that are this machine and no other


class Charter(NamedTuple):
    """What the members of a federation agreed upon."""

    address: str  # host:port at which sites find the server
    sites: tuple[str, ...]
    guests: tuple[str, ...] = ()
    bind: str = "127.0.0.1:8443"  # where the server listens: on this machine alone, behind a proxy
    deadline: float = 3600.0  # seconds for an answer
    classes: tuple[str, ...] = ()  # what every site's images are of; none: not agreed upon beforehand


def init(folder: Path, charter: Charter, own: Mapping[str, Mapping[str, Any]] | None = None) -> None:
    """Write a federation's folder: certificates, a proxy's file, and for each site a key and settings to fill in."""
    everybody = (*charter.sites, *charter.guests)
    if not charter.sites:
        raise ConfigError("a federation needs a site that trains; name one with --site")
    for name in everybody:
        if not re.fullmatch(r"[\w-]+", name):
            raise ConfigError(f"a site's name is made of letters, digits, - and _, not {name!r}")
        if everybody.count(name) > 1:
            raise ConfigError(f"a site's name is its own, and {name!r} is there twice")
    for address in (charter.address, charter.bind):
        if not re.fullmatch(r".+:\d+", address):
            raise ConfigError(f"an address is host:port, as in link.example.org:443, not {address!r}")
    (_, port), (inner, other) = (address.rsplit(":", 1) for address in (charter.address, charter.bind))
    if charter.address != charter.bind and port == other and inner in HERE:
        raise ConfigError(
            f"the proxy at {charter.address} and the server at {charter.bind} cannot both have port {port} of one "
            f"machine; give the server another, as in --bind 127.0.0.1:{int(port) + 1}"
        )
    hosts = [address.rpartition(":")[0] for address in (charter.address, charter.bind)]
    certificates.certify(folder / "server", *hosts, "127.0.0.1", "localhost")
    if charter.address != charter.bind:
        certificates.public(folder / "server" / PROXY, nginx.nginx(charter.address, charter.bind).encode())
    authority = (folder / "server" / certificates.CA).read_bytes()
    for name in everybody:
        bundle = folder / "sites" / name
        certificates.public(folder / "server" / "sites" / f"{name}.pub", certificates.pair(bundle))
        certificates.public(bundle / certificates.CA, authority)
        told: dict[str, Any] = {"site": name, "role": "train" if name in charter.sites else "guest"}
        told |= {"superlink": charter.address, "data": "folder(root='/data')", "folder": "state"}
        if name in charter.sites:
            certificates.private(
                bundle / certificates.SECRET, os.urandom(32)
            )  # of the noise that the site adds, if a run wants any
            told |= {"secret": certificates.SECRET}
        told |= {"classes": charter.classes} if charter.classes else {}
        certificates.public(bundle / SITE_FILE, toml(told | dict((own or {}).get(name, {}))).encode())
    certificates.public(folder / CHARTER, toml(charter._asdict()).encode())


def charter_of(folder: Path) -> Charter:
    """The charter in a federation's folder."""
    held = _toml(folder / CHARTER)
    try:
        members = tuple(held["sites"]), tuple(held["guests"])
        return Charter(held["address"], *members, held["bind"], float(held["deadline"]), tuple(held.get("classes", ())))
    except KeyError as error:
        raise ConfigError(f"{folder / CHARTER} lacks {error}; 'fedbeyond federation init' writes a whole one") from None


def link_command(folder: Path) -> list[str]:
    """What starts the server: TLS and keys are not a choice."""
    charter, server = charter_of(folder), folder.absolute() / "server"
    tls = {
        "--ssl-ca-certfile": certificates.CA,
        "--ssl-certfile": certificates.CERTIFICATE,
        "--ssl-keyfile": certificates.SERVER_KEY,
    }
    words = [word for flag, name in tls.items() for word in (flag, str(server / name))]
    host, _, port = charter.bind.rpartition(":")
    words += ["--host", host, "--port", port, "--database", str(server / "state.db")]
    words += ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
    return [program("flower-superlink"), *words]


def node_command(bundle: Path, port: int) -> list[str]:
    """What starts a site; `port` is for its own processes, on its own machine."""
    bundle, own = bundle.absolute(), site_settings(bundle)
    Machine.of(own)  # what is wrong is said here, not at the first letter
    Path(own["folder"]).mkdir(mode=0o700, parents=True, exist_ok=True)
    node = Path(own["folder"]) / "node.toml"
    own |= {"classes": json.dumps(own["classes"])} if "classes" in own else {}  # Flower's config knows no lists
    write(node, toml(own).encode())
    words = [
        "--superlink",
        own["superlink"],
        "--root-certificates",
        str(bundle / certificates.CA),
        "--node-config",
        str(node),
    ]
    words += ["--auth-supernode-private-key", str(bundle / certificates.SITE_KEY)]
    return [program("flower-supernode"), *words, "--host", "127.0.0.1", "--port", str(port)]


def site_settings(bundle: Path) -> dict[str, Any]:
    """What a site says of itself, its paths seen from its folder."""
    own = _toml(bundle / SITE_FILE)
    return own | {key: str(bundle.absolute() / own[key]) for key in ("folder", "policy", "secret") if own.get(key)}


def register(folder: Path) -> None:
    """Tell a server that runs which key is whose; what it knows already, it keeps."""
    for path in sorted((folder / "server" / "sites").glob("*.pub")):
        try:
            flwr(folder, "supernode", "register", str(path.absolute()), LINK, "--name", path.stem)
        except FederationError as error:
            if "already" not in str(error):
                raise


def submit(folder: Path, config: Config, out: Path, threads: int = 1) -> str:
    """Start a run, or go on with it; the number under which Flower knows it."""
    from ..node import playable

    charter = charter_of(folder)
    playable(config, len(charter.sites))
    asked = {key: value for key, value in config.identity().items() if value is not None}
    told: dict[str, Any] = {
        "config": json.dumps(asked),
        "sites": ",".join(charter.sites),
        "guests": ",".join(charter.guests),
    }
    told |= {"out": str(out.absolute()), "deadline": charter.deadline, "threads": threads}
    app = folder / "server" / "app"
    app.mkdir(mode=0o700, exist_ok=True)
    write(app / "fedbeyond_app.py", APP.encode())
    write(app / "pyproject.toml", (PROJECT + toml(told)).encode())
    said = json.loads(flwr(folder, "run", str(app.absolute()), LINK, "--format", "json"))
    if not said.get("success"):
        told_why = said.get("error-message", said)
        raise FederationError(f"the server did not take the run: {told_why} (is it up? fedbeyond serve {folder})")
    return str(said["run-id"])


def status(folder: Path, number: str) -> str:
    """What Flower says of a run, as in running or finished:completed."""
    said = json.loads(flwr(folder, "list", LINK, "--run-id", number, "--format", "json"))
    runs = said.get("runs") or [{}]
    return str(runs[0].get("status", "unknown"))


def online(folder: Path) -> int:
    """How many sites are connected now; Flower does not tell their names."""
    said = json.loads(flwr(folder, "supernode", "list", LINK, "--format", "json"))
    if not said.get("success"):
        raise FederationError(f"the server does not answer; fedbeyond serve {folder}")
    return sum(node.get("status") == "online" for node in said.get("nodes", ()))


def last_words(folder: Path, number: str) -> str:
    """The end of what a run's server app printed."""
    return flwr(folder, "log", number, LINK, "--show").strip()[-800:]


APP = '''"""The run is told in Flower's run config; all code is that of the fedbeyond installed on each machine."""

from fedbeyond.flower.app import client_app, server_app

server = server_app()
client = client_app()
'''

PROJECT = """[project]
name = "fedbeyond-run"
version = "1.0.0"
description = "A run of fedbeyond"
license = "Apache-2.0"
dependencies = ["flwr>=1.41,<1.42"]

[tool.flwr.app]
publisher = "fedbeyond"

[tool.flwr.app.components]
serverapp = "fedbeyond_app:server"
clientapp = "fedbeyond_app:client"

[tool.flwr.app.config]
"""


def flwr(folder: Path, *words: str) -> str:
    """What Flower's own command says, asked of this federation's server."""
    home, charter = folder.absolute() / "server" / "flower", charter_of(folder)
    home.mkdir(mode=0o700, exist_ok=True)
    link = {"address": charter.bind, "root-certificates": str(folder.absolute() / "server" / certificates.CA)}
    write(home / "config.toml", f'[superlink]\ndefault = "{LINK}"\n\n[superlink.{LINK}]\n{toml(link)}'.encode())
    told = environment(home) | {"COLUMNS": "160"}  # in less, its tables cut words short
    ended = subprocess.run(
        [program("flwr"), *words], env=told, capture_output=True, text=True, timeout=120, check=False
    )
    if ended.returncode:
        raise FederationError(f"flwr {' '.join(words[:2])} failed: {(ended.stderr or ended.stdout).strip()[-600:]}")
    return ended.stdout


def environment(home: Path) -> dict[str, str]:
    """What Flower's programs are told: to be silent, where to keep their things, and where their helpers are."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return os.environ | SILENT | {"FLWR_HOME": str(home), "PATH": path}


def program(name: str) -> str:
    """One of Flower's programs, as installed beside this Python."""
    found = Path(sys.executable).parent / name
    if not found.exists():
        raise ConfigError(f"Flower is not installed ({name} is missing); pip install 'fedbeyond[flower]'")
    return str(found)


def toml(table: Mapping[str, Any]) -> str:
    """A flat table of text, numbers, truths and lists of text."""
    return "".join(f"{key} = {json.dumps(list(v) if isinstance(v, tuple) else v)}\n" for key, v in table.items())


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); give the folder that 'federation init' wrote") from None
