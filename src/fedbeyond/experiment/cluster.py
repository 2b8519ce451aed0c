"""Run a grid on a Ray cluster, each run as one task. Only this module imports Ray.

A task receives its run as JSON and runs it in the run's folder, which every machine must share. If a machine is lost,
another one resumes the run from there; so does the same command without a cluster.
"""

import json
import os
import re
import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .._io import storage_errors, write
from ..errors import ConfigError, FedbeyondError
from . import bench
from .config import Config, parse
from .run_state import format_run

HERE = "ray"  # instead of an address: a cluster on this machine only, stopped at the end of the command
RETRIES = 3  # of a run whose process or machine dies
SMALL = 100 * 2**20  # bytes of Ray's object store, which is hardly used
SILENT = {"log_to_driver": False, "logging_level": "error"}
PAUSE = 1.0  # seconds after which Ctrl-C is noticed
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
# on any system: only 127.0.0.1, with a token
ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token"}


def ensure_available(address: str, device: str = "auto", jobs: int | None = None, workers: int | None = None) -> Any:
    """Raise `ConfigError` if the options do not fit a cluster or Ray is not installed; return the `ray` module."""
    if address != HERE and not re.fullmatch(r"(ray://)?[\w.-]+:\d+", address):
        raise ConfigError(f"--on takes {HERE}, HOST:PORT or ray://HOST:PORT; got {address!r}")
    if (jobs or 1) > 1 or (workers or 1) > 1:
        raise ConfigError(
            "--jobs and --workers divide the cores of one machine; leave them out with --on: Ray schedules the runs"
        )
    if ":" in device:
        raise ConfigError(f"Ray chooses the GPU of a run; give --device {device.split(':')[0]} with --on, not {device}")
    os.environ.update(QUIET)  # before Ray is imported: it reads them once
    if address == HERE:
        os.environ.update(ALONE)
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # other users here cannot submit tasks
    try:
        import ray
    except ImportError as error:
        raise ConfigError(f"Ray is not installed ({error}); pip install 'fedbeyond[ray]'") from None
    return ray


@contextmanager
def connected(ray: Any, address: str, threads: int) -> Iterator[None]:
    """Connect to a cluster, or start one here, and disconnect at the end; use an existing connection and keep it."""
    if ray.is_initialized():
        yield
        return
    try:
        start_here(ray, threads) if address == HERE else join(ray, address)
        yield
    finally:
        ray.shutdown()


def start_here(ray: Any, threads: int) -> None:
    """Start a cluster on the cores of this machine."""
    cores = max(len(bench.cores_here()), threads)
    options = {"num_cpus": cores, "include_dashboard": False, "object_store_memory": SMALL, **SILENT}
    for last in (False, True):
        try:
            ray.init(address="local", **options)
            return
        except Exception as error:  # Ray raises many kinds, among them Exception itself
            ray.shutdown()
            if last:  # the first start can time out on a busy machine
                raise ConfigError(f"Ray cannot start on this machine ({error}); try again, or use --jobs") from None


def join(ray: Any, address: str) -> None:
    """Connect to a cluster; fail at once if nothing listens at the address, where Ray itself tries for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"nothing answers at {address} ({error}); 'ray start --head' there starts a cluster and prints its address"
        ) from None
    try:
        ray.init(address=address, **SILENT)
    except Exception as error:
        raise ConfigError(
            f"{address} is not a Ray cluster that can be used from here ({error}); try 'ray status'"
        ) from None


@contextmanager
def marked(out: Path) -> Iterator[Path]:
    """Write a file by which a task can check that its `out` is the same shared folder; delete it at the end."""
    mark = out.resolve() / f".shared-{secrets.token_hex(8)}"
    write(mark, b"")
    try:
        yield mark
    finally:
        with storage_errors(mark):
            mark.unlink(missing_ok=True)


def work(
    todo: list[tuple[Config, Path]], out: Path, address: str, device: str, threads: int, tensorboard: bool = False
) -> dict[Path, str]:
    """Run the runs on a cluster, as many at a time as it has room for; return why each failed one failed."""
    if not todo:
        return {}
    ray, threads = ensure_available(address, device), threads or os.cpu_count() or 1
    with connected(ray, address, threads), marked(out) as mark:
        if device == "auto" and address != HERE:
            device = "cuda" if ray.cluster_resources().get("GPU") else "cpu"
        elif device == "auto":
            device = bench.configure_torch(device, threads)
        need = {"CPU": threads, "GPU": int(device == "cuda")}
        if not any(_room(node, need) for node in ray.nodes()):
            gpu = " and a GPU" if need["GPU"] else ""
            print(f"no machine of {address} has {threads} cores{gpu}; runs wait until one joins", file=sys.stderr)
        task = ray.remote(num_cpus=need["CPU"], num_gpus=need["GPU"], max_retries=RETRIES)(run_task)
        common: dict[str, Any] = {"start": os.getcwd(), "mark": str(mark)}
        common |= {"device": device, "threads": threads, "tensorboard": tensorboard}
        runs = {}
        for cell, folder in todo:
            order = {"config": asdict(cell), "digest": cell.digest(), "folder": str(folder.resolve())} | common
            runs[task.remote(json.dumps(order))] = cell, folder
        return wait_for_runs(ray, runs)


def run_task(order: str) -> list[str]:
    """Run or resume one run in a task, unless it is finished or runs elsewhere; return why it failed, if it did."""
    given, host = json.loads(order), socket.gethostname()
    mark, start = Path(given["mark"]), given["start"]
    if not mark.exists():
        raise ConfigError(
            f"{host} does not share {mark.parent} with this machine; give --out a folder that all machines share"
        )
    try:
        os.chdir(start)  # paths in the configuration are relative to it
    except OSError as error:
        raise ConfigError(
            f"{host} cannot enter {start} ({error.strerror}); start the command in a folder that all machines share"
        ) from None
    config = parse(given["config"])
    if config.digest() != given["digest"]:
        raise ConfigError(
            f"{host} has another version of fedbeyond, or other plugins or split files than this machine; "
            f"install the same and keep those files in a folder that all machines share"
        )
    device = bench.configure_torch(given["device"], given["threads"])
    return list(bench.work([(config, Path(given["folder"]))], device, given["tensorboard"]).values())


def wait_for_runs(ray: Any, runs: dict[Any, tuple[Config, Path]]) -> dict[Path, str]:
    """Wait for all tasks; return why each failed run failed. An exception cancels the remaining tasks."""
    failures = {}
    try:
        while runs:
            over, _ = ray.wait(list(runs), timeout=PAUSE)
            for task in over:
                cell, folder = runs[task]
                if reason := failure(ray, task, cell):
                    failures[folder] = reason
                del runs[task]
    finally:
        for task in runs:
            with suppress(Exception):  # the cluster may be gone, and its tasks with it
                ray.cancel(task, force=True)
    return failures


def failure(ray: Any, task: Any, cell: Config) -> str:
    """Return why a run failed; empty if it did not. Raise errors that are not the method's, as without a cluster."""
    try:
        return "".join(ray.get(task))
    except ray.exceptions.RayTaskError as error:
        raise (error.cause if isinstance(error.cause, FedbeyondError) else error) from None
    except ray.exceptions.RayError as error:
        first_line = str(error).strip().splitlines()[0]
        name = format_run(cell.method, cell.target, cell.seed)
        return f"{name}: its process died {1 + RETRIES} times, perhaps because memory was full ({first_line})"


def _room(node: dict[str, Any], need: dict[str, int]) -> bool:
    return node["Alive"] and all(node["Resources"].get(kind, 0) >= count for kind, count in need.items())
