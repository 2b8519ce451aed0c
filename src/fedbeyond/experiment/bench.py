"""Run one configuration, or a grid of methods, targets and seeds, with progress on the terminal."""

import json
import math
import os
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .. import _plugins
from .._io import storage_errors, write
from ..engine import allocator
from ..errors import BusyError, ConfigError, FedbeyondError, FederationError, StorageError
from ..evaluation import cautions
from ..evaluation.rules import RULES, unseen
from ..evaluation.selection import Line, class_counts, percent, selection_score
from . import event_files, results, run_folder, runner
from .build import dataset
from .config import Config
from .grid import describe_repeated, grid
from .helper_processes import helpers
from .prepare import Experiment, prepare
from .progress import progress
from .results import FAILURE, PLAN
from .run_state import format_run


class Outcome(NamedTuple):
    """The number of runs in a grid, the reason of each that failed by its folder, and the device they ran on."""

    total: int
    failures: Mapping[Path, str]
    device: str

    def ensure_complete(self) -> None:
        """Raise `FederationError` if a run failed."""
        if self.failures:
            reasons = " | ".join(self.failures.values())
            raise FederationError(f"{len(self.failures)} of {self.total} runs failed: {reasons}")


def run_one(config: Config, out: Path, device: str, threads: int, tensorboard: bool = False, workers: int = 1) -> None:
    """Train one method with one domain unseen, and print the scores."""
    if tensorboard:
        event_files.ensure_installed()
    folder = run_folder.path(out, config)
    run_folder.ensure_same_run(folder, config)
    lines = run_folder.finished_lines(folder, config)
    if nothing_to_do := bool(lines):
        if tensorboard:
            event_files.rewrite(folder)
    else:
        setup = prepare(config, configure_torch(device, threads, workers), workers)
        for about in dataset(config.data).about:
            print(about, file=sys.stderr, flush=True)
        with progress([(config, folder)]):
            lines = run_to_end(setup, folder, tensorboard)
    done = f"{config.train.rounds} rounds done" + ("; nothing to do" if nothing_to_do else "")
    print(f"{format_run(config.method, config.target, config.seed)}: {done}")
    for rule in (config.train.select, "last", "oracle"):
        line = RULES[rule](lines)
        print(
            f"  {rule:18} round {line['round'] + 1:3}   own domains {percent(selection_score(line), 6)}   "
            f"unseen {unseen(line):6.1%}"
        )
    line = RULES[config.train.select](lines)
    if rates := majority(line):
        print(f"  {'majority class':18} {'':9}   own domains {percent(rates[0], 6)}   unseen {rates[1]:6.1%}")
    selected = {(config.method, str(config.target), config.seed): line}
    for warning in cautions.wrap_warnings(cautions.run_warnings(selected)):
        print(warning)
    print(f"results: {folder / results.RESULTS}\nmodel:   {folder / run_folder.BEST}")
    if nothing_to_do:
        print(f"to see them: fedbeyond report {shlex.quote(str(out))}; for more rounds: --set train.rounds=...")


def majority(line: Line) -> tuple[float | None, float] | None:
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
    return selection_score(constant), unseen(constant)


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
        event_files.ensure_installed()
    if on:
        from . import cluster

        cluster.ensure_available(on, device, jobs, workers)
        jobs = workers = 1  # on this machine; Ray decides on the cluster
    runs = [(cell, run_folder.path(out, cell)) for cell in grid(config)]
    todo, total = [], len(runs)
    for cell, folder in runs:
        run_folder.ensure_same_run(folder, cell)
        if not run_folder.is_finished(folder, cell):
            todo.append((cell, folder))
        elif tensorboard:
            event_files.rewrite(folder)
    jobs, workers = plan_processes(len(todo), device, threads, jobs, workers)
    write_plan([cell for cell, _ in runs], out, jobs)
    for remark in describe_repeated(config):
        print(remark, flush=True)
    if not todo:
        print(f"{total} run{'s' if total > 1 else ''}: {total} done, nothing to do; kept in {out}", flush=True)
        print(f"to see them again: fedbeyond report {shlex.quote(str(out))}", flush=True)
        return Outcome(total, {}, configure_torch("auto" if on else device, threads, workers))
    print(
        f"{total} run{'s' if total > 1 else ''}: {total - len(todo)} done, {len(todo)} to go; kept in {out}", flush=True
    )
    if jobs > 1 or workers > 1:
        sites = f"the sites of each in {workers} processes" if workers > 1 else "each in a process of its own"
        print(f"{jobs} run{'s' if jobs > 1 else ''} at a time, {sites}", flush=True)
    print(f"to watch them: fedbeyond watch {shlex.quote(str(out))}", flush=True)
    with progress(runs, jobs):
        if on:
            failures = cluster.work(todo, out, on, device, threads, tensorboard)
            device = configure_torch("auto", threads)  # figures are drawn here
        else:
            device = configure_torch(device, threads, workers)
            with helpers(min(jobs, len(todo)) - 1, workers):
                failures = work(todo, device, tensorboard, workers)
            remaining = [run for run in todo if run[1] not in failures and not run_folder.is_finished(run[1], run[0])]
            failures |= work(remaining, device, tensorboard, workers)  # failed in a helper, or the helper died
    return Outcome(total, failures, device)


def plan_processes(todo: int, device: str, threads: int, jobs: int | None, workers: int | None) -> tuple[int, int]:
    """Return how many runs to run at a time, and in how many processes the sites of each, where this is not given.

    Runs in parallel never wait for each other; cores that are left over are used for the sites of each run.
    """
    cuda = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    cores = max(1, len(cores_here()) // (threads or 1))
    if jobs is None:
        jobs = 1 if cuda or not threads else max(1, min(todo, cores // (workers or 1)))
    if workers is None:
        supported = sys.platform == "linux" and threads == 1
        workers = torch.cuda.device_count() if cuda else cores // jobs if supported else 1
    return jobs, max(1, workers)


def cores_here() -> Collection[int]:
    """Return the cores that this process may use."""
    return os.sched_getaffinity(0) if sys.platform == "linux" else range(os.cpu_count() or 1)


def run_as_helper(
    config: Config, out: Path, device: str, threads: int, tensorboard: bool = False, workers: int = 1
) -> None:
    """Run the runs of a grid that no other process runs, without output."""
    todo = [(cell, run_folder.path(out, cell)) for cell in grid(config)]
    work(todo, configure_torch(device, threads, workers), tensorboard, workers)


def write_plan(cells: list[Config], out: Path, jobs: int) -> None:
    """Write the list of a grid's runs, which `watch` shows before they start."""
    runs = [
        {"method": cell.method, "target": cell.target, "seed": cell.seed, "rounds": cell.train.rounds} for cell in cells
    ]
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    write(out / PLAN, json.dumps({"jobs": jobs, "runs": runs}, indent=1).encode())


def work(
    todo: list[tuple[Config, Path]], device: str, tensorboard: bool = False, workers: int = 1, keep_on: bool = False
) -> dict[Path, str]:
    """Run the runs that are neither finished nor running elsewhere; return why each failed one failed.

    An error of fedbeyond itself is raised; if `keep_on`, code without a plugin is the user's, and others go on.
    """
    failures, waiting = {}, {folder: cell for cell, folder in todo}
    while waiting:
        folder = next_run(waiting, todo)
        cell = waiting.pop(folder)
        try:
            run_folder.ensure_same_run(folder, cell)
            if not run_folder.is_finished(folder, cell):
                run_to_end(prepare(cell, device, workers), folder, tensorboard)
        except BusyError:
            continue
        except Exception as error:  # one method that fails does not stop the others
            ours = isinstance(error, FedbeyondError) or not (keep_on or _plugins.place(error))
            if ours and not isinstance(error, FederationError):
                raise
            _plugins.print_traceback_if_wanted()
            failures[folder] = f"{format_run(cell.method, cell.target, cell.seed)}: {reason_of(error)}"
    return failures


def next_run(waiting: Mapping[Path, Config], todo: list[tuple[Config, Path]]) -> Path:
    """Return the run to start next: the first of a method without a finished run, then the one that takes longest.

    The last runs are then short ones, and no process waits long for another at the end.
    """
    seconds: dict[str, float] = {}
    for cell, folder in todo:
        if cell.method not in seconds and (folder / run_folder.DONE).exists():
            seconds[cell.method] = sum(line["seconds"] for line in results.read(folder / results.TIMES))
    return max(waiting, key=lambda folder: seconds.get(waiting[folder].method, math.inf))


def run_to_end(setup: Experiment, folder: Path, tensorboard: bool = False) -> list[Line]:
    """Run the missing rounds of an experiment; return the lines of all its rounds."""
    history: list[Line] = []
    lines = runner.run(setup, folder, history)
    with record_failure(folder):
        for _ in event_files.mirrored(lines, folder) if tensorboard else lines:
            pass
    return history


@contextmanager
def record_failure(folder: Path) -> Iterator[None]:
    """Write to the run's folder why it failed; delete what an earlier failure wrote."""
    with storage_errors(folder):
        (folder / FAILURE).unlink(missing_ok=True)
    try:
        yield
    except BusyError:
        raise
    except Exception as error:
        with suppress(StorageError):  # a full disk must not hide the error
            write(folder / FAILURE, json.dumps({"error": reason_of(error)}).encode())
        raise


def reason_of(error: Exception) -> str:
    """Return why a run failed, in one line."""
    return str(error) if isinstance(error, FedbeyondError) else _plugins.describe(error)


def configure_torch(device: str, threads: int, workers: int = 1) -> str:
    """Configure torch for this machine; return the device to compute on."""
    if workers > 1 and threads != 1:
        raise ConfigError(f"{workers} workers have one thread each; leave out threads ({threads}) or workers")
    torch.set_num_threads(threads or os.cpu_count() or 1)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    allocator.keep_freed_memory()
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        if workers == 1:  # several workers each use a device of their own
            torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device {device!r} cannot be used ({reason}); try the device cpu") from None
    return device
