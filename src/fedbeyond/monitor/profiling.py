"""Profile a run: seconds by section, and a flame graph of all Python calls."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from .. import timer
from .._io import write
from ..errors import ConfigError


@contextmanager
def profiled(parts: bool, flame: Path | None, workers: int = 1) -> Iterator[None]:
    """Time the block: print the seconds of each section at its end, and write a flame graph as an HTML page."""
    if workers > 1 and (parts or flame):
        raise ConfigError(
            "a profile measures one process; leave out --workers: the sections of each site take the same time"
        )
    if flame and not flame.absolute().parent.is_dir():
        raise ConfigError(f"--flame {flame}: there is no folder {flame.parent}; create it, or give another file")
    sampler = _sampler() if flame else None
    with timer.timing() if parts else nullcontext() as watch:
        if sampler:
            sampler.start()
        try:
            yield
        finally:  # also if the run was interrupted
            if sampler and flame:
                sampler.stop()
                write(flame, sampler.output_html().encode())
                print(f"flame graph: {flame}")
            if watch:
                watch.turn(timer.REST)
                print("where the time went:", *timer.format_sections(watch.seconds), sep="\n")


def _sampler() -> Any:
    try:
        from pyinstrument import Profiler
    except ImportError:
        raise ConfigError("a flame graph needs pyinstrument; pip install 'fedbeyond[profile]'") from None
    return Profiler(interval=0.002)
