"""What a run can be asked about itself: seconds by part, and a flame graph of all that Python called."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from .. import timer
from .._io import write
from ..errors import ConfigError


@contextmanager
def profiled(parts: bool, flame: Path | None, workers: int = 1) -> Iterator[None]:
    """Time what is done in the block: by part, printed when it is left, and call by call, written as a page."""
    if workers > 1 and (parts or flame):
        raise ConfigError("a profile looks at one process; leave out --workers, whose parts take the same time each")
    if flame and not flame.absolute().parent.is_dir():
        raise ConfigError(f"--flame {flame}: there is no folder {flame.parent}; make it, or name another file")
    sampler = _sampler() if flame else None
    with timer.timing() if parts else nullcontext() as watch:
        if sampler:
            sampler.start()
        try:
            yield
        finally:  # also of a run that was stopped
            if sampler and flame:
                sampler.stop()
                write(flame, sampler.output_html().encode())
                print(f"flame graph: {flame}")
            if watch:
                watch.turn(timer.REST)
                print("where the time went:", *timer.told(watch.seconds), sep="\n")


def _sampler() -> Any:
    try:
        from pyinstrument import Profiler
    except ImportError:
        raise ConfigError("a flame graph needs pyinstrument; pip install 'fedbeyond[profile]'") from None
    return Profiler(interval=0.002)
