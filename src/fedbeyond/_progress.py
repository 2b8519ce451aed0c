"""Progress of long operations on stderr: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

Item = TypeVar("Item")
PATIENCE, PAUSE = 2.0, 10.0  # seconds before the first output, and between plain lines


def track(items: Sequence[Item], what: str) -> Iterator[Item]:
    """Yield the items, and print progress on stderr if they take long."""
    began = printed = time.monotonic()
    terminal, visible = sys.stderr.isatty(), False
    for done, item in enumerate(items):
        now = time.monotonic()
        if now - printed > (PATIENCE if not visible else 0.2 if terminal else PAUSE):
            left = (now - began) / max(done, 1) * (len(items) - done)
            line = f"{what}: {done:,} of {len(items):,}, {clock(left)} left"
            sys.stderr.write(f"\r\033[K{line}" if terminal else f"{line}\n")
            sys.stderr.flush()
            printed, visible = now, True
        yield item
    if visible and terminal:
        sys.stderr.write("\r\033[K")


def clock(seconds: float) -> str:
    """Format a duration: 40 s, 3:20 min, 1:05 h."""
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    return f"{total // 60}:{total % 60:02d} min" if total < 3600 else f"{total // 3600}:{total % 3600 // 60:02d} h"


class Meter:
    """Progress over a number of rounds: a bar on a terminal, occasional plain lines elsewhere."""

    def __init__(self, rounds: int) -> None:
        self.left, self.done, self.began = rounds, 0, time.monotonic()
        self.printed = 0.0  # long ago: the first round is printed at once
        self.bar = _bar(rounds) if sys.stderr.isatty() else None

    def __enter__(self) -> "Meter":
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar:
            self.bar.stop()

    def begin(self, label: str) -> None:
        """Start a run: show its label."""
        if self.bar:
            self.bar.update(self.bar.task_ids[0], description=label, news="")

    def skip(self, rounds: int) -> None:
        """Subtract rounds that need not run."""
        self.left -= rounds
        if self.bar:
            task = self.bar.tasks[0]
            self.bar.update(task.id, total=(task.total or 0) - rounds)

    def advance(self, rounds: int) -> None:
        """Count rounds that another process has completed."""
        self.left, self.done = self.left - rounds, self.done + rounds
        if self.bar:
            self.bar.update(self.bar.task_ids[0], advance=rounds)

    def step(self, label: str, news: str, last: bool) -> None:
        """Count a completed round, and show its scores (`news`)."""
        self.left, self.done, now = self.left - 1, self.done + 1, time.monotonic()
        if self.bar:
            self.bar.update(self.bar.task_ids[0], advance=1, description=label, news=news)
            if last:
                self.bar.console.print(f"{label}: {news}", highlight=False)
        elif last or now - self.printed > PAUSE:
            remaining = (now - self.began) / self.done * self.left
            print(f"{label}: {news}, {clock(remaining)} left", file=sys.stderr, flush=True)
            self.printed = now


def _bar(rounds: int) -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    label, news = TextColumn("{task.description}"), TextColumn("{task.fields[news]}")
    times = TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
    bar = Progress(label, BarColumn(20), news, *times, console=Console(stderr=True), transient=True)
    bar.add_task("", total=rounds, news="")
    return bar
