"""The numbers of a result line by name, and TensorBoard event files in the folder of a run."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._io import storage_errors
from ..errors import ConfigError
from ..evaluation.selection import Line
from . import run_folder

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"


def numbers(line: Line) -> dict[str, float]:
    """Return the numbers of a round by name.

    Examples: accuracy/sketch/test, weights/photo, diagnostics/gaps/photo, bytes_up/photo, rejected.
    """
    values: dict[str, Any] = {}
    for name, splits in line.get("scores", {}).items():
        for split, scores in splits.items():
            if isinstance(scores, dict):
                values |= {f"{metric}/{name}/{split}": score for metric, score in scores.items()}
    values |= _named("weights", line["weights"]) | _named("diagnostics", line.get("diagnostics", {}))
    for site, kinds in line["bytes_up"].items():
        values[f"bytes_up/{site}"] = sum(size for names in kinds.values() for size in names.values())
    values["rejected"] = len(line["rejected"])
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}


def ensure_installed() -> None:
    """Raise `ConfigError` if TensorBoard is not installed."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        raise ConfigError("--tensorboard needs TensorBoard; run pip install 'fedbeyond[tensorboard]'") from None


def mirrored(lines: Iterator[Line], folder: Path) -> Iterator[Line]:
    """Yield the lines of a run as they are written, and write each as events too."""
    writer = None
    try:
        for line in lines:
            if writer is None:
                writer = _open(folder)
            else:
                _add(writer, line)
            yield line
    finally:
        if writer is not None:
            writer.close()


def rewrite(folder: Path) -> None:
    """Write the events of all lines of a run again."""
    _open(folder).close()


def _open(folder: Path) -> "SummaryWriter":
    """Start a new event file with every line so far.

    It replaces the older ones: after a kill they may lack an event, or hold one of a round that is run again.
    """
    from torch.utils.tensorboard import SummaryWriter

    events = folder / FOLDER
    with storage_errors(events):
        for old in events.glob("events.out.tfevents.*"):
            old.unlink(missing_ok=True)
        writer = SummaryWriter(str(events), purge_step=0)  # a TensorBoard that read the older ones drops them
    for line in run_folder.lines(folder):
        _add(writer, line)
    return writer


def _add(writer: "SummaryWriter", line: Line) -> None:
    with storage_errors(Path(writer.log_dir)):
        for name, value in numbers(line).items():
            writer.add_scalar(name, value, line["round"])
        writer.flush()


def _named(prefix: str, value: Any) -> dict[str, Any]:
    """Return the leaves of nested dicts by their path."""
    if not isinstance(value, dict):
        return {prefix: value}
    return {name: leaf for key, inner in value.items() for name, leaf in _named(f"{prefix}/{key}", inner).items()}
