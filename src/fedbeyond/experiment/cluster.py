"""The runs of a grid on a Ray cluster, each a task of its own. Ray is imported here and nowhere else.

A task is told its run in strings and numbers and plays it in the run's folder, which every machine must see: what was
finished when a machine is lost is there for the next one, and for the same command without a cluster.
"""

import json
import os
import re
import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .._io import storing, write
from .._progress import Meter
from ..errors import ConfigError, FedbeyondError
from ..evaluation.selection import Line
from . import bench, runner
from .config import Config, parse
from .results import RESULTS

HERE = "ray"  # in the place of an address: a cluster of this machine alone, as long as the command takes
RETRIES = 3  # of a run whose process, or machine, dies
SMALL = 100 * 2**20  # bytes for what goes through Ray: next to nothing
SILENT = {"log_to_driver": False, "logging_level": "error"}
PAUSE = 1.0  # seconds between two looks at what runs have written
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token"}  # on any system: 127.0.0.1, and a password


def require(address: str, device: str = "auto", jobs: int | None = None, workers: int | None = None) -> Any:
    """Ray, once it is known that what was asked of it makes sense."""
    if address != HERE and not re.fullmatch(r"(ray://)?[\w.-]+:\d+", address):
        raise ConfigError(f"--on takes {HERE}, HOST:PORT or ray://HOST:PORT; got {address!r}")
    if (jobs or 1) > 1 or (workers or 1) > 1:
        raise ConfigError(
            "--jobs and --workers share out one machine; leave them out: with --on, Ray shares out its own"
        )
    if ":" in device:
        raise ConfigError(f"Ray chooses the GPU of a run; give --device {device.split(':')[0]} with --on, not {device}")
    os.environ.update(QUIET)  # before Ray is imported: it looks once
    if address == HERE:
        os.environ.update(ALONE)
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # no other user of this machine gives it work
    try:
        import ray
    except ImportError as error:
        raise ConfigError(f"Ray is not installed ({error}); pip install 'fedbeyond[ray]'") from None
    return ray


@contextmanager
def connected(ray: Any, address: str, threads: int) -> Iterator[None]:
    """Ray as it is, if the caller has started it; else a connection that ends, or a cluster here that is stopped."""
    if ray.is_initialized():
        yield
        return
    try:
        begin_here(ray, threads) if address == HERE else join(ray, address)
        yield
    finally:
        ray.shutdown()


def begin_here(ray: Any, threads: int) -> None:
    """Start a cluster of this machine's cores."""
    cores = max(len(bench.cores_here()), threads)
    options = {"num_cpus": cores, "include_dashboard": False, "object_store_memory": SMALL, **SILENT}
    for last in (False, True):
        try:
            ray.init(address="local", **options)
            return
        except Exception as error:  # Ray raises many kinds, among them Exception itself
            ray.shutdown()
            if last:  # a machine that is busy may be too slow for Ray once
                raise ConfigError(f"Ray cannot start on this machine ({error}); try again, or use --jobs") from None


def join(ray: Any, address: str) -> None:
    """Connect to a cluster; at once refuse an address at which nobody is: Ray itself looks for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"nothing answers at {address} ({error}); 'ray start --head' there begins a cluster and prints its address"
        ) from None
    try:
        ray.init(address=address, **SILENT)
    except Exception as error:
        raise ConfigError(
            f"{address} is no Ray cluster that can be used from here ({error}); try 'ray status'"
        ) from None


@contextmanager
def marked(out: Path) -> Iterator[Path]:
    """A file by which a task knows that it sees the folder that we see, and no other of that name."""
    mark = out.resolve() / f".shared-{secrets.token_hex(8)}"
    write(mark, b"")
    try:
        yield mark
    finally:
        with storing(mark):
            mark.unlink(missing_ok=True)


def work(
    todo: list[tuple[Config, Path]], out: Path, address: str, device: str, threads: int, tensorboard: bool = False
) -> dict[Path, str]:
    """Play runs on a cluster, as many at a time as it has room for; which broke down, and why."""
    if not todo:
        return {}
    ray, threads = require(address, device), threads or os.cpu_count() or 1
    with connected(ray, address, threads), marked(out) as mark:
        if device == "auto":
            device = bench.machine(device, threads) if address == HERE else _device(ray)
        need = {"CPU": threads, "GPU": int(device == "cuda")}
        if not any(_room(node, need) for node in ray.nodes()):
            told = " and a GPU" if need["GPU"] else ""
            print(f"no machine of {address} has {threads} cores{told}: runs wait until one joins", file=sys.stderr)
        task = ray.remote(num_cpus=need["CPU"], num_gpus=need["GPU"], max_retries=RETRIES)(play)
        common: dict[str, Any] = {"start": os.getcwd(), "mark": str(mark)}
        common |= {"device": device, "threads": threads, "tensorboard": tensorboard}
        runs = {}
        for place, (cell, folder) in enumerate(todo, 1):
            label = f"{place}/{len(todo)} {cell.method}, {cell.target} unseen, seed {cell.seed}"
            order = {"config": asdict(cell), "digest": cell.digest(), "folder": str(folder.resolve())} | common
            runs[task.remote(json.dumps(order))] = Played(cell, folder, label)
        return gather(ray, runs)


def play(order: str) -> list[str]:
    """What a task does: play a run, or go on with it, unless it is done or another plays it; why it broke down."""
    given, host = json.loads(order), socket.gethostname()
    mark, start = Path(given["mark"]), given["start"]
    if not mark.exists():
        raise ConfigError(
            f"{host} does not see {mark.parent} as this machine does; let --out be in a folder that all machines share"
        )
    try:
        os.chdir(start)  # where paths of the configuration begin
    except OSError as error:
        raise ConfigError(
            f"{host} cannot enter {start} ({error.strerror}); give the command in a folder that all machines share"
        ) from None
    config = parse(given["config"])
    if config.digest() != given["digest"]:
        raise ConfigError(
            f"{host} has another version of fedbeyond, or other plugins or split files than this machine; "
            f"install the same and keep those files in a folder that all machines share"
        )
    device = bench.machine(given["device"], given["threads"])
    return list(bench.work([(config, Path(given["folder"]))], device, given["tensorboard"]).values())


@dataclass
class Played:
    """A run that is played elsewhere, and how much of what it writes has been told."""

    cell: Config
    folder: Path
    label: str
    rounds: int = 0
    size: int = 0

    def catch_up(self) -> list[Line]:
        """The lines that came since the last look."""
        path = self.folder / RESULTS
        size = path.stat().st_size if path.exists() else 0
        if size == self.size:
            return []
        fresh = runner.lines(self.folder)[self.rounds :]
        self.rounds, self.size = self.rounds + len(fresh), size
        return fresh


def gather(ray: Any, runs: dict[Any, Played]) -> dict[Path, str]:
    """Tell how runs go on until the last is over; which broke down, and why. Whatever stops us stops them."""
    failures = {}
    with Meter(sum(run.cell.train.rounds for run in runs.values())) as meter:
        for run in runs.values():
            meter.skip(len(run.catch_up()))  # played before
        try:
            while runs:
                over, _ = ray.wait(list(runs), timeout=PAUSE)
                for run in runs.values():
                    for line in run.catch_up():
                        meter.step(run.label, bench.tell(line), last=line["round"] + 1 == line["rounds"])
                for task in over:
                    run = runs[task]
                    if why := _outcome(ray, task, run):
                        failures[run.folder] = why
                        meter.skip(run.cell.train.rounds - run.rounds)
                    else:
                        meter.advance(run.cell.train.rounds - run.rounds)  # somebody else plays it
                    del runs[task]
        finally:
            for task in runs:
                with suppress(Exception):  # a cluster that is gone has stopped them
                    ray.cancel(task, force=True)
    return failures


def _outcome(ray: Any, task: Any, run: Played) -> str:
    """Why a run broke down; nothing if it did not. What is no fault of its method is raised, as without a cluster."""
    try:
        return "".join(ray.get(task))
    except ray.exceptions.RayTaskError as error:
        raise (error.cause if isinstance(error.cause, FedbeyondError) else error) from None
    except ray.exceptions.RayError as error:
        told = str(error).strip().splitlines()[0]
        name = run.label.partition(" ")[2]
        return f"{name}: its process died {1 + RETRIES} times, perhaps for want of memory ({told})"


def _device(ray: Any) -> str:
    return "cuda" if ray.cluster_resources().get("GPU") else "cpu"


def _room(node: dict[str, Any], need: dict[str, int]) -> bool:
    return node["Alive"] and all(node["Resources"].get(kind, 0) >= count for kind, count in need.items())
