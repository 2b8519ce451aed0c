"""Progress on anything that takes longer than a moment: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

Item = TypeVar("Item")
PATIENCE, PAUSE = 2.0, 10.0  # seconds before anything is said, and between plain lines


def track(items: Sequence[Item], what: str) -> Iterator[Item]:
    """The items, with their progress told on stderr if they take long."""
    began = told = time.monotonic()
    terminal, spoke = sys.stderr.isatty(), False
    for done, item in enumerate(items):
        now = time.monotonic()
        if now - told > (PATIENCE if not spoke else 0.2 if terminal else PAUSE):
            left = (now - began) / max(done, 1) * (len(items) - done)
            line = f"{what}: {done:,} of {len(items):,}, {clock(left)} left"
            sys.stderr.write(f"\r\033[K{line}" if terminal else f"{line}\n")
            sys.stderr.flush()
            told, spoke = now, True
        yield item
    if spoke and terminal:
        sys.stderr.write("\r\033[K")


def clock(seconds: float) -> str:
    """Seconds as people say them: 40 s, 3:20 min, 1:05 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60}:{whole % 60:02d} min" if whole < 3600 else f"{whole // 3600}:{whole % 3600 // 60:02d} h"


class Meter:
    """How far a number of rounds has come: a bar on a terminal, a plain line now and then elsewhere."""

    def __init__(self, rounds: int) -> None:
        self.left, self.played, self.began = rounds, 0, time.monotonic()
        self.told = 0.0  # long ago: the first round is told at once
        self.bar = _bar(rounds) if sys.stderr.isatty() else None

    def __enter__(self) -> "Meter":
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar:
            self.bar.stop()

    def begin(self, label: str) -> None:
        """A run begins."""
        if self.bar:
            self.bar.update(self.bar.task_ids[0], description=label, news="")

    def skip(self, rounds: int) -> None:
        """Rounds that need not be played."""
        self.left -= rounds
        if self.bar:
            task = self.bar.tasks[0]
            self.bar.update(task.id, total=(task.total or 0) - rounds)

    def advance(self, rounds: int) -> None:
        """Rounds that somebody else has played."""
        self.left, self.played = self.left - rounds, self.played + rounds
        if self.bar:
            self.bar.update(self.bar.task_ids[0], advance=rounds)

    def step(self, label: str, news: str, last: bool) -> None:
        """A round has been played."""
        self.left, self.played, now = self.left - 1, self.played + 1, time.monotonic()
        if self.bar:
            self.bar.update(self.bar.task_ids[0], advance=1, description=label, news=news)
            if last:
                self.bar.console.print(f"{label}: {news}", highlight=False)
        elif last or now - self.told > PAUSE:
            remaining = (now - self.began) / self.played * self.left
            print(f"{label}: {news}, {clock(remaining)} left", file=sys.stderr, flush=True)
            self.told = now


def _bar(rounds: int) -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    said = TextColumn("{task.description}"), TextColumn("{task.fields[news]}")
    times = TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
    bar = Progress(said[0], BarColumn(20), said[1], *times, console=Console(stderr=True), transient=True)
    bar.add_task("", total=rounds, news="")
    return bar
