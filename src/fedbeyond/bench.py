"""Runs with their progress shown: one, or a grid of methods, targets and seeds; and their report written."""

import json
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from . import cautions, events, experiment, memory, registry, results, setting
from .config import Config, cells
from .data.splits import sources
from .errors import BusyError, ConfigError, FedbeyondError, FederationError, StorageError
from .files import storing, write
from .progress import Meter
from .report.rules import RULES, unseen
from .report.write import write_report
from .results import Line
from .selection import class_counts, selection

PLAN, FAILURE = "plan.json", "failure.json"  # what a grid consists of, and why a run broke down: for who watches


def run_one(config: Config, out: Path, device: str, threads: int, tensorboard: bool = False, workers: int = 1) -> None:
    """Train one method with one domain left out, and say how it went."""
    if tensorboard:
        events.require()
    folder = experiment.place(out, config)
    if not experiment.finished(folder, config):
        setup = experiment.prepare(config, machine(device, threads, workers), workers)
        with Meter(config.train.rounds) as meter:
            follow(setup, folder, meter, tensorboard=tensorboard)
    elif tensorboard:
        events.rewrite(folder)
    lines = experiment.lines(folder)
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
) -> None:
    """Run what is not yet done of a grid, some runs at a time or `on` a cluster, then print its table and page."""
    if tensorboard:
        events.require()
    if on:
        from . import cluster

        cluster.require(on, device, jobs, workers)
        jobs = workers = 1  # here; there, it is Ray's to say
    every = list(grid(config))
    todo, total = [], len(every)
    for cell in every:
        folder = experiment.place(out, cell)
        if not experiment.finished(folder, cell):
            todo.append((cell, folder))
        elif tensorboard:
            events.rewrite(folder)
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
        left = [(cell, place) for cell, place in todo if not experiment.finished(place, cell) and place not in failures]
        failures |= work(left, device, tensorboard, workers)  # what broke down in a helper, or was left by a dead one
    if len(failures) < total:
        print()
        write_report([out], config.train.select, "text", None)
        if config.bench.figures:
            draw_figures(config.bench.figures, out, device)
        write_report([out], config.train.select, "html", out / "report.html")
    if failures:
        raise FederationError(f"{len(failures)} of {total} runs broke down: {' | '.join(failures.values())}")


def draw_figures(kinds: Iterable[str], out: Path, device: str) -> None:
    """Draw figures of a grid's runs for its page; what cannot be drawn is said, and stops nothing."""
    from .figures.draw import draw

    for kind in kinds:
        try:
            for _, paths in draw(kind, [out], device=device):
                print(f"figure: {paths[1]}")
        except FedbeyondError as error:
            print(f"left out: figure {kind}: {error}", file=sys.stderr)


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
    todo = [(cell, experiment.place(out, cell)) for cell in grid(config)]
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
                if experiment.finished(folder, cell):
                    meter.advance(cell.train.rounds)
                else:
                    setup = experiment.prepare(cell, device, workers)
                    follow(setup, folder, meter, f"{place}/{len(todo)} ", tensorboard)
            except BusyError:
                meter.advance(cell.train.rounds)
            except FederationError as error:  # one method that breaks down does not stop the others
                meter.skip(cell.train.rounds - len(experiment.lines(folder)))
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


def grid(config: Config, domains: Iterable[str] = ()) -> Iterator[Config]:
    """The cells of a grid, once all its names are known to be good; `domains` are named if data are not there."""
    require_methods(config)
    names = tuple(domains) or setting.domains(config.data)
    for cell in cells(config, names):
        sources(sorted(names), cell.target)
        yield cell


def require_methods(config: Config) -> None:
    """Refuse methods that cannot be built, before data are read."""
    registry.load_plugins(config.plugins)
    optimizer = registry.make_one("optimizers", config.optimizer)
    for method in config.bench.methods or (config.method,):
        registry.build(method, optimizer=optimizer)


def follow(
    setup: experiment.Experiment, folder: Path, meter: Meter, prefix: str = "", tensorboard: bool = False
) -> None:
    """Play a run to its end, telling each round."""
    config = setup.config
    label = f"{prefix}{config.method}, {config.target} unseen, seed {config.seed}"
    meter.begin(label)
    lines = experiment.run(setup, folder)
    with failing(folder):
        for place, line in enumerate(events.mirrored(lines, folder) if tensorboard else lines):
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
    memory.keep()
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        if workers == 1:  # of several, each will find out for itself
            torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device {device!r} cannot be used ({reason}); try --device cpu") from None
    return device
