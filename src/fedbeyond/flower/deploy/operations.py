"""The operations of a federation, thin over Flower's commands: start server and sites, register keys, submit runs.

Nothing here imports Flower: its programs are started as processes.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from ..._io import create_private, write
from ...errors import ConfigError, FederationError
from ...experiment.config import Config
from ...spec import unseen_domains
from ..site_config import SiteConfig
from . import certificates, keys
from .addresses import split_address
from .folder import FederationConfig, read_federation_config, site_settings

# no telemetry, no update check, no installation of packages during a run
COLOURS = ("FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE")  # they ask for escape sequences in pipes
SILENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
LINK = "federation"  # the name by which Flower's commands know the server
PROGRAMS, SUPEREXEC = "bin", "fedbeyond.flower.superexec"  # in Flower's home; the module that they run


def link_command(folder: Path) -> list[str]:
    """Return the command that starts the server, always with TLS and with authentication of sites."""
    federation, server = read_federation_config(folder), folder.absolute() / "server"
    host, port = split_address(federation.bind)
    words = ["--host", host, "--port", str(port), "--database", str(server / "state.db")]
    words += ["--ssl-ca-certfile", str(server / certificates.CA)]
    words += ["--ssl-certfile", str(server / certificates.CERTIFICATE)]
    words += ["--ssl-keyfile", str(server / certificates.SERVER_KEY)]
    words += ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
    return [program("flower-superlink"), *words]


def node_command(bundle: Path, port: int) -> list[str]:
    """Return the command that starts a site; the processes of the site use `port`, on the site's machine only."""
    bundle, own = bundle.absolute(), site_settings(bundle)
    SiteConfig.parse(own)  # report invalid settings here, not at the first message
    if not (bundle / certificates.SITE_KEY).exists():
        raise ConfigError(f"this site has no key yet; create it, for the operator to register: {enrol_command(bundle)}")
    create_private(Path(own["folder"]))
    node = Path(own["folder"]) / "node.toml"
    own |= {"bundle": str(bundle)}
    own |= {"classes": json.dumps(own["classes"])} if "classes" in own else {}  # Flower's config has no lists
    write(node, tomli_w.dumps(own).encode(), private=True)
    words = ["--superlink", own["superlink"], "--node-config", str(node), "--host", "127.0.0.1", "--port", str(port)]
    words += ["--root-certificates", str(bundle / certificates.CA)]
    words += ["--auth-supernode-private-key", str(bundle / certificates.SITE_KEY)]
    return [program("flower-supernode"), *words]


def enrol_command(bundle: Path) -> str:
    """Return the command that creates the key of a site."""
    return f"fedbeyond join --enrol {bundle}"


def register(folder: Path) -> None:
    """Let the running server accept the stored keys and no others: register new keys, withdraw those replaced."""
    current, record = keys.registered_keys(folder), keys.read_record(folder)
    for number, key in [(number, key) for number, key in record.accepted.items() if key not in current.values()]:
        _change_node(folder, "unregister", number, "not found")
        del record.accepted[number]
        record.withdrawn.append(key)
        keys.write_record(folder, record)
    if lost := [key for key in record.unnumbered if key not in current.values()]:
        raise FederationError(
            f"the server may accept {lost[0]}, whose file in {folder / 'server' / 'sites'} is missing, and Flower's "
            "number of it is not known; write it to NAME.pub there, then use federation register --replace"
        )
    for name, key in current.items():
        if key not in record.accepted.values() and key not in record.unnumbered:
            record.unnumbered.append(key)  # on disk before Flower has it: its number may get lost
            keys.write_record(folder, record)
        file = folder.absolute() / "server" / "sites" / f"{name}.pub"
        if number := _change_node(folder, "register", str(file), "already", "--name", name):
            record.unnumbered[:] = [other for other in record.unnumbered if other != key]
            record.accepted[number] = key
            keys.write_record(folder, record)


def _change_node(folder: Path, verb: str, what: str, harmless: str, *options: str) -> str:
    """Register or unregister a node, and return its number; empty if it was so before, of which Flower complains."""
    try:
        answer = json.loads(flwr(folder, "supernode", verb, what, LINK, *options, "--format", "json"))
    except FederationError as error:
        answer = {"error-message": str(error)}
    reason = str(answer.get("error-message", answer))
    if not answer.get("success") and harmless not in reason.lower():
        raise FederationError(f"the server did not {verb} {what}: {reason}")
    return str(answer.get("node-id", ""))


def ensure_executable(federation: FederationConfig, config: Config) -> None:
    """Raise `ConfigError` if this federation cannot execute a run, as far as the server can know."""
    from ..node import federated_method

    federated_method(config, len(federation.sites))
    if federation.guests and {*unseen_domains(config.target)} != {*federation.guests}:
        raise ConfigError(
            f"target is {config.target!r}, but the guests are {', '.join(federation.guests)}: set target to the "
            "guests, which reports show as unseen"
        )


def submit(folder: Path, config: Config, out: Path, threads: int = 1) -> str:
    """Start a run, or resume it, and return Flower's number of it."""
    federation = read_federation_config(folder)
    ensure_executable(federation, config)
    identity = {key: value for key, value in config.identity().items() if value is not None}
    run_config: dict[str, Any] = {"config": json.dumps(identity), "sites": ",".join(federation.sites)}
    run_config |= {"guests": ",".join(federation.guests), "out": str(out.absolute())}
    run_config |= {"deadline": federation.deadline, "threads": threads, "images": json.dumps(federation.images)}
    app = folder / "server" / "app"
    create_private(app)
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
    create_private(home)
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
    """Return the environment of Flower's programs: no telemetry, their folder, and where their helper programs are.

    A notebook asks programs for colours, which would be part of their JSON.
    """
    path = os.pathsep.join((str(home / PROGRAMS), str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    plain = {name: value for name, value in os.environ.items() if name not in COLOURS}
    return plain | SILENT | {"FLWR_HOME": str(home), "PATH": path}


def write_launcher(home: Path) -> None:
    """Write the program that Flower starts instead of its own SuperExec: see `flower/superexec.py`."""
    launcher = home / PROGRAMS / "flower-superexec"
    create_private(launcher.parent)
    write(launcher, f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m {SUPEREXEC} "$@"\n'.encode(), private=True)
    launcher.chmod(0o700)


def program(name: str) -> str:
    """Return the path of one of Flower's programs, installed with this Python; `ConfigError` if it is missing."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise ConfigError(f"Flower is not installed ({name} is missing); pip install 'fedbeyond[flower]'")
    return str(path)
