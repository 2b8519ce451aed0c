"""Progress of runs on stderr, read from their folders: a live display on a terminal, plain lines elsewhere."""

import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from rich.console import Group
from rich.table import Table

from .._progress import live_display, one_line
from . import run_folder
from .config import Config
from .remaining import about, seconds_left
from .results import FAILURE
from .run_state import Run, changed, format_rejected, format_run

POLL, PAUSE = 1.0, 30.0  # seconds between two reads of the folders, and between plain lines about all runs
SHRINK = (1, 2, 5)  # columns of `table` that are shortened if a row does not fit the terminal


@contextmanager
def progress(runs: Sequence[tuple[Config, Path]], jobs: int = 1) -> Iterator[None]:
    """Show the runs of a grid while the block runs them, in whatever process; print each one once when it ends."""
    display, over = Display(runs, jobs), threading.Event()

    def follow() -> None:
        while not over.wait(POLL):
            display.show(display.read())

    thread = threading.Thread(target=follow, name="progress", daemon=True)
    with display.live or nullcontext():
        display.show(display.read())
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            display.read()


class Display:
    """The runs of a grid, which of them have ended, and the live display if there is a terminal."""

    def __init__(self, runs: Sequence[tuple[Config, Path]], jobs: int) -> None:
        self.jobs, self.live = jobs, live_display()
        self.printed = -math.inf  # when the last line about all runs was printed
        self.runs = [
            Run(folder, (cell.method, str(cell.target), cell.seed), cell.train.rounds) for cell, folder in runs
        ]
        self.ended = {folder: "done" for cell, folder in runs if run_folder.is_finished(folder, cell)}
        self.old_failures = {run.folder: changed(run.folder / FAILURE) for run in self.runs}
        for run in self.runs:
            if run.folder in self.ended:
                run.read_times()

    def read(self) -> list[str]:
        """Read what was added, print the runs that ended since the last call, and return the state of each run."""
        states = []
        for run in self.runs:
            state, reason = self.state(run)
            if state in ("done", "failed") and self.ended.get(run.folder) != state:
                self.ended[run.folder] = state
                self.print_ended(run, f"failed: {reason}" if state == "failed" else "")
            states.append(state)
        return states

    def state(self, run: Run) -> tuple[str, str]:
        """Return done, running, failed or pending, and the reason if the run failed since the display began."""
        if self.ended.get(run.folder) == "done":
            return "done", ""
        if not run.folder.exists():
            return "pending", ""
        run.read()
        state, reason = run.state()
        is_old = 0 < changed(run.folder / FAILURE) == self.old_failures[run.folder]
        return ("pending", "") if state == "stopped" or (state == "failed" and is_old) else (state, reason)

    def show(self, states: Sequence[str]) -> None:
        """Show the runs that are running and the progress of all; without a terminal only the latter, now and then."""
        left = self.seconds_left(states)
        time_left = f"{about(left)} left" if left else ""
        if self.live:
            running = [run for run, state in zip(self.runs, states, strict=True) if state == "running"]
            rows = [
                ("", *cells(run), join(f"round {len(run.summaries)}/{run.rounds}", run.scores())) for run in running
            ]
            self.live.update(Group(one_line(join(*self.counts(states), time_left)), table(rows)), refresh=True)
        elif time_left and time.monotonic() - self.printed > PAUSE:
            alone = [f"{format_run(*run.key)}: {run.last().text}" for run in self.runs if len(self.runs) == 1]
            print(join(*alone, *self.counts(states), time_left), file=sys.stderr, flush=True)
            self.printed = time.monotonic()

    def counts(self, states: Sequence[str]) -> list[str]:
        """Return how many runs are done, running and failed; nothing for a single run."""
        counts, total = Counter(states), len(states)
        ended = [f"{counts[state]} {state}" for state in ("running", "failed") if counts[state]]
        return [f"{counts['done']} of {total} done", *ended] if total > 1 else []

    def seconds_left(self, states: Sequence[str]) -> float | None:
        """Estimate the time until all runs are done."""
        runs = [
            {"method": run.key[0], "rounds": run.rounds, "rounds_done": len(run.summaries), "state": state}
            for run, state in zip(self.runs, states, strict=True)
        ]
        return seconds_left(runs, {run.key: list(run.seconds.values()) for run in self.runs}, self.jobs)

    def print_ended(self, run: Run, failure: str) -> None:
        """Print a run that is done, or its failure."""
        count = f"{len(self.ended)}/{len(self.runs)}" if len(self.runs) > 1 else ""
        if self.live:
            result = ("", failure) if failure else (run.scores(), format_rejected(run.last().rejected))
            self.live.console.print(table([(count, *cells(run), *result)]))
        else:
            print(f"{count} {format_run(*run.key)}: {failure or run.last().text}".strip(), file=sys.stderr, flush=True)


def cells(run: Run) -> tuple[str, str, str]:
    """Return the cells of a row that name a run."""
    method, target, seed = run.key
    return method, f"{target} unseen", f"seed {seed}"


def join(*parts: str) -> str:
    """Join the parts that are not empty."""
    return ", ".join(part for part in parts if part)


def table(rows: Sequence[Sequence[str]]) -> Table:
    """Return rows of count, method, unseen domain, seed, scores and remark, each in one line of the terminal."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    for place in range(max(map(len, rows), default=0)):
        grid.add_column(no_wrap=place not in SHRINK)
    for row in rows:
        grid.add_row(*map(one_line, row))
    return grid
