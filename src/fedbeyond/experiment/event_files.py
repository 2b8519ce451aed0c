"""A run's lines as numbers by name, and as TensorBoard's event files beside them."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._io import storing
from ..errors import ConfigError
from ..evaluation.selection import Line
from . import runner

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"


def numbers(line: Line) -> dict[str, float]:
    """Every number of a round under a name: accuracy/sketch/test, weights/photo, told/gaps/photo, left/photo, aside."""
    found: dict[str, Any] = {}
    for name, splits in line.get("scores", {}).items():
        for split, scores in splits.items():
            if isinstance(scores, dict):
                found |= {f"{metric}/{name}/{split}": score for metric, score in scores.items()}
    found |= _named("weights", line["weights"]) | _named("told", line.get("told", {}))
    for site, kinds in line["left"].items():
        found[f"left/{site}"] = sum(size for names in kinds.values() for size in names.values())
    found["aside"] = len(line["aside"])
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}


def require() -> None:
    """Refuse where TensorBoard is not installed."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        raise ConfigError(
            "--tensorboard needs TensorBoard; get it with: pip install 'fedbeyond[tensorboard]'"
        ) from None


def mirrored(lines: Iterator[Line], folder: Path) -> Iterator[Line]:
    """The lines of a run as they come, each written as events too."""
    writer = None
    try:
        for line in lines:
            if writer is None:
                writer = _begin(folder)
            else:
                _put(writer, line)
            yield line
    finally:
        if writer is not None:
            writer.close()


def rewrite(folder: Path) -> None:
    """The events of all lines that a run has."""
    _begin(folder).close()


def _begin(folder: Path) -> "SummaryWriter":
    """A file of events that holds every line so far.

    It takes the place of older ones: a run that was killed may lack an event, or have one of a round that is redone.
    """
    from torch.utils.tensorboard import SummaryWriter

    place = folder / FOLDER
    with storing(place):
        for old in place.glob("events.out.tfevents.*"):
            old.unlink(missing_ok=True)
        writer = SummaryWriter(str(place), purge_step=0)  # whoever has read the older ones forgets them
    for line in runner.lines(folder):
        _put(writer, line)
    return writer


def _put(writer: "SummaryWriter", line: Line) -> None:
    with storing(Path(writer.log_dir)):
        for name, value in numbers(line).items():
            writer.add_scalar(name, value, line["round"])
        writer.flush()


def _named(prefix: str, value: Any) -> dict[str, Any]:
    """The leaves of nested dicts, named by their path."""
    if not isinstance(value, dict):
        return {prefix: value}
    return {name: leaf for key, inner in value.items() for name, leaf in _named(f"{prefix}/{key}", inner).items()}
