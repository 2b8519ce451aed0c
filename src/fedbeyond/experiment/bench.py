"""Runs with their progress shown: one, or a grid of methods, targets and seeds; and their report written."""

import json
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .. import _memory
from .._io import storing, write
from .._progress import Meter
from ..errors import BusyError, ConfigError, FedbeyondError, FederationError, StorageError
from ..evaluation import cautions
from ..evaluation.rules import RULES, unseen
from ..evaluation.selection import Line, class_counts, selection
from . import event_files, results, runner
from .config import Config
from .grid import grid
from .results import FAILURE, PLAN


class Outcome(NamedTuple):
    """The number of runs in a grid, the reason of each that failed by its folder, and the device they ran on."""

    total: int
    failures: Mapping[Path, str]
    device: str

    def ensure_complete(self) -> None:
        """Raise `FederationError` if a run failed."""
        if self.failures:
            reasons = " | ".join(self.failures.values())
            raise FederationError(f"{len(self.failures)} of {self.total} runs broke down: {reasons}")


def run_one(config: Config, out: Path, device: str, threads: int, tensorboard: bool = False, workers: int = 1) -> None:
    """Train one method with one domain left out, and say how it went."""
    if tensorboard:
        event_files.require()
    folder = runner.place(out, config)
    if not runner.finished(folder, config):
        setup = runner.prepare(config, machine(device, threads, workers), workers)
        with Meter(config.train.rounds) as meter:
            follow(setup, folder, meter, tensorboard=tensorboard)
    elif tensorboard:
        event_files.rewrite(folder)
    lines = runner.lines(folder)
    print(f"{config.method}, {config.target} unseen, seed {config.seed}: {config.train.rounds} rounds done")
    for rule in (config.train.select, "last", "oracle"):
        line = RULES[rule](lines)
        print(
            f"  {rule:18} round {line['round'] + 1:3}   own domains {selection(line):6.1%}   unseen {unseen(line):6.1%}"
        )
    line = RULES[config.train.select](lines)
    if rates := majority(line):
        print(f"  {'majority class':18} {'':9}   own domains {rates[0]:6.1%}   unseen {rates[1]:6.1%}")
    for warning in cautions.wrapped(cautions.of_runs({(config.method, str(config.target), config.seed): line})):
        print(warning)
    print(f"results: {folder / results.RESULTS}\nmodel:   {folder / 'best.safetensors'}")


def majority(line: Line) -> tuple[float, float] | None:
    """Compute the scores of always predicting the most frequent class, averaged as the model's are; None if unknown."""
    rates: dict[str, dict[str, Any]] = {}
    for name, splits in line["scores"].items():
        for part in ("val", "test"):
            if part in splits:
                rate = cautions.majority_rate(class_counts(splits[part]))
                rates[name] = splits | {part: splits[part] | {"accuracy": rate}}
                if rate is None:
                    return None
    constant = line | {"scores": rates}
    return selection(constant), unseen(constant)


def run_all(
    config: Config,
    out: Path,
    device: str,
    threads: int,
    jobs: int | None = 1,
    tensorboard: bool = False,
    workers: int | None = 1,
    on: str = "",
) -> Outcome:
    """Run what is not yet done of a grid, some runs at a time or `on` a cluster."""
    if tensorboard:
        event_files.require()
    if on:
        from . import cluster

        cluster.require(on, device, jobs, workers)
        jobs = workers = 1  # here; there, it is Ray's to say
    every = list(grid(config))
    todo, total = [], len(every)
    for cell in every:
        folder = runner.place(out, cell)
        if not runner.finished(folder, cell):
            todo.append((cell, folder))
        elif tensorboard:
            event_files.rewrite(folder)
    jobs, workers = spread(len(todo), device, threads, jobs, workers)
    write_plan(every, out, jobs)
    print(f"{total} runs: {total - len(todo)} done, {len(todo)} to go; kept in {out}", flush=True)
    if jobs > 1 or workers > 1:
        sites = f"the sites of each in {workers} processes" if workers > 1 else "each in a process of its own"
        print(f"{jobs} run{'s' if jobs > 1 else ''} at a time, {sites}", flush=True)
    print(f"to watch them: fedbeyond watch {shlex.quote(str(out))}", flush=True)
    if on:
        failures = cluster.work(todo, out, on, device, threads, tensorboard)
        device = machine("auto", threads)  # figures are drawn here
    else:
        device = machine(device, threads, workers)
        with helpers(min(jobs, len(todo)) - 1, workers):
            failures = work(todo, device, tensorboard, workers)
        left = [(cell, place) for cell, place in todo if not runner.finished(place, cell) and place not in failures]
        failures |= work(left, device, tensorboard, workers)  # what broke down in a helper, or was left by a dead one
    return Outcome(total, failures, device)


def spread(todo: int, device: str, threads: int, jobs: int | None, workers: int | None) -> tuple[int, int]:
    """How many runs to play at a time, and in how many processes the sites of each, where that is left open.

    Whole runs side by side never wait for each other; what cores are then left over go to the sites of each run.
    """
    cuda = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    cores = max(1, len(cores_here()) // (threads or 1))
    if jobs is None:
        jobs = 1 if cuda or not threads else max(1, min(todo, cores // (workers or 1)))
    if workers is None:
        able = sys.platform == "linux" and threads == 1
        workers = torch.cuda.device_count() if cuda else cores // jobs if able else 1
    return jobs, max(1, workers)


def cores_here() -> Collection[int]:
    """The cores that this process may use."""
    return os.sched_getaffinity(0) if sys.platform == "linux" else range(os.cpu_count() or 1)


def help_out(config: Config, out: Path, device: str, threads: int, tensorboard: bool = False, workers: int = 1) -> None:
    """Play runs of a grid that nobody else is playing, and say nothing."""
    todo = [(cell, runner.place(out, cell)) for cell in grid(config)]
    work(todo, machine(device, threads, workers), tensorboard, workers)


def write_plan(every: list[Config], out: Path, jobs: int) -> None:
    """Write down what a grid consists of, before any of it is there to be seen."""
    runs = [
        {"method": cell.method, "target": cell.target, "seed": cell.seed, "rounds": cell.train.rounds} for cell in every
    ]
    with storing(out):
        out.mkdir(parents=True, exist_ok=True)
    write(out / PLAN, json.dumps({"jobs": jobs, "runs": runs}, indent=1).encode())


@contextmanager
def helpers(count: int, workers: int = 1) -> Iterator[None]:
    """Further processes of the same command, each playing the runs that it finds free; waits for them in the end."""
    command = [sys.executable, "-m", "fedbeyond", *sys.argv[1:], "--workers", str(workers), "--helper"]
    started = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(count)]
    try:
        yield
        for process in started:
            process.wait()
    finally:
        for process in started:
            process.terminate()


def work(todo: list[tuple[Config, Path]], device: str, tensorboard: bool = False, workers: int = 1) -> dict[Path, str]:
    """Play the runs that are neither done nor being played elsewhere; which broke down, and why."""
    failures, waiting = {}, {folder: (place, cell) for place, (cell, folder) in enumerate(todo, 1)}
    with Meter(sum(cell.train.rounds for cell, _ in todo)) as meter:
        while waiting:
            folder = longest(waiting, todo)
            place, cell = waiting.pop(folder)
            try:
                if runner.finished(folder, cell):
                    meter.advance(cell.train.rounds)
                else:
                    setup = runner.prepare(cell, device, workers)
                    follow(setup, folder, meter, f"{place}/{len(todo)} ", tensorboard)
            except BusyError:
                meter.advance(cell.train.rounds)
            except FederationError as error:  # one method that breaks down does not stop the others
                meter.skip(cell.train.rounds - len(runner.lines(folder)))
                failures[folder] = f"{cell.method}, {cell.target} unseen, seed {cell.seed}: {error}"
    return failures


def longest(waiting: Mapping[Path, tuple[int, Config]], todo: list[tuple[Config, Path]]) -> Path:
    """The run to play next: of those of a method of which none is over, the first; then what takes longest.

    So the last runs are short ones, and no process waits long for another in the end.
    """
    took: dict[str, float] = {}
    for cell, folder in todo:
        if cell.method not in took and (folder / "done").exists():
            took[cell.method] = sum(line["seconds"] for line in results.read(folder / results.TIMES))
    return max(waiting, key=lambda folder: took.get(waiting[folder][1].method, math.inf))


def follow(setup: runner.Experiment, folder: Path, meter: Meter, prefix: str = "", tensorboard: bool = False) -> None:
    """Play a run to its end, telling each round."""
    config = setup.config
    label = f"{prefix}{config.method}, {config.target} unseen, seed {config.seed}"
    meter.begin(label)
    lines = runner.run(setup, folder)
    with failing(folder):
        for place, line in enumerate(event_files.mirrored(lines, folder) if tensorboard else lines):
            if place == 0:
                meter.skip(line["round"])  # played before the run was stopped
            meter.step(label, tell(line), last=line["round"] + 1 == line["rounds"])


@contextmanager
def failing(folder: Path) -> Iterator[None]:
    """Write down beside a run why it breaks down, whatever the reason, and forget why it once did."""
    with storing(folder):
        (folder / FAILURE).unlink(missing_ok=True)
    try:
        yield
    except BusyError:
        raise
    except Exception as error:
        why = str(error) if isinstance(error, FedbeyondError) else f"{type(error).__name__}: {error}"
        with suppress(StorageError):  # a full disk must not hide what went wrong
            write(folder / FAILURE, json.dumps({"error": why}).encode())
        raise


def tell(line: Line) -> str:
    """A round in half a line."""
    told = f"round {line['round'] + 1}/{line['rounds']}"
    if "scores" in line:
        told += f", own {selection(line):.1%}, unseen {unseen(line):.1%}"
    aside = ", ".join(sorted({entry["site"] for entry in line["aside"]}))
    return told + (f", set aside: {aside}" if aside else "")


def machine(device: str, threads: int, workers: int = 1) -> str:
    """Set torch up for this machine; the name of the device to compute on."""
    if workers > 1 and threads != 1:
        raise ConfigError(f"{workers} workers have one thread each; leave out --threads {threads} or --workers")
    torch.set_num_threads(threads or os.cpu_count() or 1)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    _memory.keep()
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        if workers == 1:  # of several, each will find out for itself
            torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device {device!r} cannot be used ({reason}); try --device cpu") from None
    return device
