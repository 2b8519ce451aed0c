"""Where the seconds of a run go: a stopwatch that is always in one part, and off unless somebody asks."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

REST = "all else"
NOTHING: AbstractContextManager[None] = nullcontext()


class Stopwatch:
    """Seconds by part; a part inside another stops the other one's clock."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.now, self.since = REST, time.perf_counter()

    def turn(self, name: str) -> str:
        """Go over to another part; the one that was left."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # else its time would count where somebody waits for it
        left, now = self.now, time.perf_counter()
        self.seconds[left] += now - self.since
        self.now, self.since = name, now
        return left

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        left = self.turn(name)
        try:
            yield
        finally:
            self.turn(left)


running: Stopwatch | None = None


def part(name: str) -> AbstractContextManager[None]:
    """A stretch of work, timed if somebody asked."""
    return running.part(name) if running else NOTHING


@contextmanager
def timing() -> Iterator[Stopwatch]:
    """A stopwatch that runs until the block is left."""
    global running
    running = watch = Stopwatch()
    try:
        yield watch
    finally:
        watch.turn(REST)
        running = None


def told(seconds: dict[str, float]) -> Iterator[str]:
    """Lines for people, the longest part first."""
    total = sum(seconds.values())
    for name, spent in sorted(seconds.items(), key=lambda item: -item[1]):
        yield f"  {name:20} {spent:9.2f} s {spent / total:6.1%}"
    yield f"  {'in all':20} {total:9.2f} s"
