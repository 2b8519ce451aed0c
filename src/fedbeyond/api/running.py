"""Run experiments inside a user's process: settings of torch are restored, progress goes where the user looks."""

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .._factory import shown
from .._lifetime import end_with_parent
from .._progress import live_display, one_line
from ..errors import ConfigError
from ..evaluation.rules import unseen
from ..evaluation.selection import Line, percent, selection_score
from ..experiment import run_folder, runner
from ..experiment.bench import configure_torch
from ..experiment.config import Config
from ..experiment.prepare import prepare
from ..experiment.storage import Storage

Progress = bool | Callable[[Line], None]
POLL = 1.0  # seconds between two reads of the folders of runs in other processes


class Computing(NamedTuple):
    """Where and how runs are computed; not part of their results."""

    device: str = "auto"
    threads: int = 1
    workers: int = 1
    progress: Progress = True


@contextmanager
def torch_settings(computing: Computing) -> Iterator[str]:
    """Configure torch for runs, yield the device, and restore the user's settings."""
    require_count("threads", computing.threads, 0)
    require_count("workers", computing.workers)
    threads, cudnn = torch.get_num_threads(), torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    try:
        yield configure_torch(computing.device, computing.threads, computing.workers)
    finally:
        torch.set_num_threads(threads)
        cudnn.deterministic, cudnn.benchmark = before


def run_rounds(config: Config, storage: Storage, device: str, workers: int, show: Callable[[Line], None]) -> None:
    """Run the rounds that are missing; call `show` with the line of each."""
    lines = runner.run(prepare(config, device, workers), storage)
    try:
        for line in lines:
            show(line)
    finally:
        lines.close()  # type: ignore[attr-defined]  # also if `show` raises: the run's folder is unlocked now


def interactive() -> bool:
    """Return whether a person works in this process: a notebook, IPython or the Python prompt."""
    return hasattr(sys, "ps1")


@contextmanager
def announced(progress: Progress, total: int) -> Iterator[Callable[[Line], None]]:
    """Yield a function that shows the lines of rounds: the user's own, or one line on a terminal or in a notebook."""
    if callable(progress):
        yield progress
        return
    show, close = _display() if progress else (None, None)
    finished: set[tuple[str, str, int]] = set()

    def show_line(line: Line) -> None:
        if show is None:
            return
        if line["round"] + 1 == line["rounds"]:
            finished.add((line["method"], line["target"], line["seed"]))
        scores = ""
        if "scores" in line:
            scores = f", own domains {percent(selection_score(line))}, unseen {unseen(line):.1%}"
        count = f"{len(finished)} of {total} runs done; " if total > 1 else ""
        rounds = f"round {line['round'] + 1} of {line['rounds']}"
        show(f"{count}{line['method']}, {line['target']} unseen, seed {line['seed']}: {rounds}{scores}")

    try:
        yield show_line
    finally:
        if close:
            close()


def _display() -> tuple[Callable[[str], None] | None, Callable[[], None] | None]:
    """Return functions that show a text in place and remove it; none without a terminal or a notebook."""
    if "ipykernel" in sys.modules:
        from IPython.display import display  # type: ignore[import-not-found, unused-ignore]

        handle = display({"text/plain": ""}, raw=True, display_id=True)
        update = partial(handle.update, raw=True)
        return (lambda text: update({"text/plain": text})), (lambda: update({"text/plain": ""}))
    live = live_display()
    if live is None:
        return None, None
    live.start()
    return (lambda text: live.update(one_line(text), refresh=True)), live.stop


@contextmanager
def followed(folders: Sequence[Path], show: Callable[[Line], None]) -> Iterator[None]:
    """While the block runs, show the lines that this and other processes add to the folders of runs.

    What `show` raises is raised at the end of the block.
    """
    over, raised = threading.Event(), list[BaseException]()
    known = {folder: len(run_folder.lines(folder)) for folder in folders}

    def follow() -> None:
        try:
            last = False
            while not last:
                last = over.wait(POLL)  # then all lines are written
                for folder in folders:
                    for line in run_folder.lines(folder)[known[folder] :]:
                        known[folder] += 1
                        show(line)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=follow, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if raised:
        raise raised[0]


@contextmanager
def forked(count: int, work: Callable[[], object]) -> Iterator[Callable[[], None]]:
    """Run `work` in `count` forked processes beside the block; yield a function that waits for them.

    Processes that have not ended at the end of the block are ended.

    The processes inherit every object of this one. They have one thread each: the thread pools of torch and OpenMP do
    not survive a fork.
    """
    if count and sys.platform != "linux":
        raise ConfigError("jobs need Linux; leave out jobs, or use the command line: fedbeyond bench --jobs")
    if count and torch.cuda.is_initialized():
        raise ConfigError("jobs cannot start when this process has used the GPU; leave out jobs, or restart the kernel")
    fork, started = get_context("fork"), list[Any]()
    try:
        for _ in range(count):
            started.append(fork.Process(target=_in_child, args=(work,), daemon=True))
            with warnings.catch_warnings():  # Python warns of forks beside the threads of a notebook
                warnings.simplefilter("ignore", DeprecationWarning)
                started[-1].start()
        yield lambda: _join(started)
    finally:
        for process in started:
            process.terminate()
            process.join()


def _join(processes: Sequence[Any]) -> None:
    for process in processes:
        process.join()


def _in_child(work: Callable[[], object]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if parent := parent_process():
        end_with_parent(parent.sentinel)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
    torch.set_num_threads(1)
    work()


def require_count(argument: str, given: object, least: int = 1) -> None:
    """Raise `ConfigError` unless an argument is a whole number of at least `least`."""
    if not isinstance(given, int) or isinstance(given, bool) or given < least:
        raise ConfigError(f"{argument}: got {shown(given)}; give a whole number, at least {least}")


def as_sequence(given: Any, argument: str) -> Sequence[Any]:
    """Return a list of what was given: one thing or several."""
    if isinstance(given, str | int):
        return [given]
    try:
        return list(given)
    except TypeError:
        raise ConfigError(f"{argument}: got {shown(given)}; give one value or a list") from None
