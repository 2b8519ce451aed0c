"""A timer that measures how long a run spends in each named section; off unless `timing` is active."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

REST = "other"
NOTHING: AbstractContextManager[None] = nullcontext()


class Timer:
    """Seconds by section; a nested section pauses the section around it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.now, self.since = REST, time.perf_counter()

    def turn(self, name: str) -> str:
        """Switch to another section and return the name of the previous one."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # else GPU time would count in the section that waits for it
        previous, now = self.now, time.perf_counter()
        self.seconds[previous] += now - self.since
        self.now, self.since = name, now
        return previous

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Count the time inside the block as section `name`."""
        previous = self.turn(name)
        try:
            yield
        finally:
            self.turn(previous)


active: Timer | None = None


def section(name: str) -> AbstractContextManager[None]:
    """Count the time inside the block as section `name`, if a timer is active."""
    return active.section(name) if active else NOTHING


@contextmanager
def timing() -> Iterator[Timer]:
    """Activate a timer for the block, and yield it."""
    global active
    active = timer = Timer()
    try:
        yield timer
    finally:
        timer.turn(REST)
        active = None


def format_sections(seconds: dict[str, float]) -> Iterator[str]:
    """Yield one line per section, the longest first, then the total."""
    total = sum(seconds.values())
    for name, spent in sorted(seconds.items(), key=lambda item: -item[1]):
        yield f"  {name:20} {spent:9.2f} s {spent / total:6.1%}"
    yield f"  {'total':20} {total:9.2f} s"
