"""Progress of long operations on stderr: a line that changes on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

Item = TypeVar("Item")
PATIENCE, PAUSE = 2.0, 10.0  # seconds before the first output, and between plain lines


def track(items: Sequence[Item], what: str) -> Iterator[Item]:
    """Yield the items, and print progress on stderr if they take long."""
    began = printed = time.monotonic()
    live, visible = live_display(), False
    try:
        for done, item in enumerate(items):
            now = time.monotonic()
            if now - printed > (PATIENCE if not visible else 0.2 if live else PAUSE):
                left = (now - began) / max(done, 1) * (len(items) - done)
                line = f"{what}: {done:,} of {len(items):,}, {clock(left)} left"
                if live:
                    live.start()
                    live.update(one_line(line), refresh=True)
                else:
                    print(line, file=sys.stderr, flush=True)
                printed, visible = now, True
            yield item
    finally:
        if live:
            live.stop()


def clock(seconds: float) -> str:
    """Format a duration: 40 s, 3:20 min, 1:05 h."""
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    return f"{total // 60}:{total % 60:02d} min" if total < 3600 else f"{total // 3600}:{total % 3600 // 60:02d} h"


def live_display() -> "Live | None":
    """Return a display that is erased at its end; None without a terminal, or inside another display.

    A display replaces `sys.stderr`: plain lines are printed above it.
    """
    stream = sys.__stderr__
    if stream is None or sys.stderr is not stream or not stream.isatty():
        return None
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    if not console.is_interactive:
        return None
    return Live(console=console, auto_refresh=False, transient=True, redirect_stdout=sys.stdout.isatty())


def one_line(text: str) -> "Text":
    """Return a text for a display, which ends with an ellipsis if it does not fit."""
    from rich.text import Text

    return Text(text, no_wrap=True, overflow="ellipsis")
