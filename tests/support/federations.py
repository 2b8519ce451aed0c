"""A federation on 127.0.0.1 with TLS, keys and, where nginx is installed, a proxy; run by the commands of operators."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from fedbeyond.experiment.config import Config
from fedbeyond.flower.deploy import processes
from fedbeyond.flower.deploy.folder import FEDERATION_FILE, PROXY, SITE_FILE, read_federation_config
from support.commands import fedbeyond, going, remaining, until
from support.lying.lies import environment_of

SITES, GUEST = ("east", "north"), "west"  # every one takes seconds of computing for every message
SPY = "spy"  # has a key that the server knows, and is none of the federation's sites
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


class Federation:
    """Its folder and addresses and, for drills to replace, the processes of its members.

    `lies` gives some sites code of their own (`support/lying`).
    """

    def __init__(
        self, folder: Path, stack: ExitStack, names: tuple[str, ...] = SITES, lies: Mapping[str, str] | None = None
    ) -> None:
        self.names, self.lies = names, lies or {}
        self.server, self.proxy = (f"127.0.0.1:{port}" for port in processes.free_ports(2))
        self.folder, self.stack = folder, stack
        if not NGINX:
            self.proxy = self.server
        sites = [word for name in (*names, SPY) for word in ("--site", name)]
        where = ["--address", self.proxy, "--bind", self.server, "--deadline", "100"]
        fedbeyond("federation", "init", folder, *where, *sites, "--guest", GUEST)
        self.data = write_images(folder / "data", names)
        for name in (*names, GUEST, SPY):  # as a site fills it in
            path = self.bundle(name) / SITE_FILE
            path.write_text(path.read_text().replace("folder(root='/data')", self.data))
            fedbeyond("join", "--enrol", self.bundle(name))
            fedbeyond("federation", "register", folder, name, self.bundle(name) / "key.pub")
        charter = read_federation_config(folder)._replace(sites=names)  # the spy may join; nobody asks it
        (folder / FEDERATION_FILE).write_text(tomli_w.dumps(charter._asdict()))
        if NGINX:
            stack.enter_context(proxying(folder / "server"))
        self.link = self.serve()
        self.sites = {name: self.join(name) for name in (*names, GUEST)}

    @property
    def members(self) -> list[Any]:
        return [self.link, *self.sites.values()]

    def serve(self) -> Any:
        log = self.folder / "serve.txt"
        before = log.stat().st_size if log.exists() else 0
        process = self.stack.enter_context(going("serve", self.folder, log=log))
        until(lambda: f"serving on {self.server}" in log.read_text()[before:], process)
        return process

    def join(self, name: str) -> Any:
        lying = environment_of(self.lies[name]) if name in self.lies else {}
        return self.stack.enter_context(going("join", self.bundle(name), log=self.bundle(name) / "join.txt", **lying))

    def leave(self, name: str) -> None:
        """End a site, which is then no member that tests wait with."""
        process = self.sites.pop(name)
        process.terminate()
        process.wait(100)

    def bundle(self, name: str) -> Path:
        return self.folder / "sites" / name

    def messages(self, name: str, config: Config) -> list[dict[str, Any]]:
        """What a site's log says of a run's messages."""
        path = self.bundle(name) / "state" / "audit.jsonl"
        text = path.read_text() if path.exists() else ""
        found = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [line for line in found if line.get("run") == config.digest()]

    def busy(self, name: str, config: Config, kind: str, number: int) -> bool:
        """Whether a site is computing an answer."""
        last = self.messages(name, config)[-1:]
        return bool(last) and (last[0]["direction"], last[0].get("kind"), last[0].get("round")) == ("in", kind, number)


def write_images(folder: Path, names: tuple[str, ...] = SITES) -> str:
    """Write a few images of three domains, `who` being their patients, and return the dataset's spec."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in (*names, GUEST):
        pixels, who = rng.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8), np.arange(40) // 3
        np.savez(folder / f"{name}.npz", x=pixels, y=np.arange(40) % 2, who=who)
    return f"npz(root='{folder}')"


def proxying(folder: Path) -> Any:
    """nginx before a server, until the block is left."""
    assert NGINX
    command = [NGINX, "-p", str(folder), "-c", PROXY, "-e", "stderr", "-g", "daemon off;"]
    return processes.started(command, folder / "flower", folder / "nginx.log")


@contextmanager
def federated(folder: Path, *names_and_lies: Any) -> Iterator[Federation]:
    """A federation that is up until the block is left, and of which nothing is left then."""
    with ExitStack() as stack:
        federation = Federation(folder, stack, *names_and_lies)
        yield federation
        for process in federation.sites.values():
            process.terminate()  # all at once, and before the server, of which they take leave: each takes seconds
        for process in federation.sites.values():
            process.wait(100)
    found = remaining(folder)
    assert not found, found
