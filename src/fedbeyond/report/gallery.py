"""All figures of a report: those made from result lines, and those that lie beside the runs as files."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..errors import StorageError
from ..evaluation.selection import Line
from . import classes, curves, sensitivity, weighing
from .figure import Figure, svg, table
from .table import Table, runs

FOLDER = "figures"  # in a folder of runs, where `fedbeyond figure` writes


class Shown(NamedTuple):
    """A figure as a page takes it."""

    name: str
    title: str
    caption: str
    svg: str
    csv: str


def figures(lines: Sequence[Line], found: Table, baseline: str, names: Sequence[str] = ()) -> list[Figure]:
    """What can be drawn of finished runs; `names` are those of the classes, if they are known."""
    done = {key: run for key, run in runs(lines).items() if len(run) == run[-1]["rounds"]}
    drawn = [
        curves.over_rounds(done, found, baseline),
        curves.against(found, baseline),
        *sensitivity.figures(found),
        weighing.weights(done, found),
        weighing.gaps(done, found),
        weighing.gap_bars(done, found),
        classes.recall(found, baseline, names),
        classes.confusion(found, baseline, names),
    ]
    return [figure for figure in drawn if figure]


def shown(figure: Figure) -> Shown:
    """A figure that was just drawn."""
    return Shown(figure.name, figure.title, figure.caption, svg(figure), table(figure))


def kept(folders: Sequence[Path]) -> list[Shown]:
    """Figures that lie in folders of runs: name.svg with name.json and name.csv beside it."""
    files = [file for folder in folders for file in sorted((folder / FOLDER).glob("*.svg"))]
    return [_read(file) for file in files]


def _read(file: Path) -> Shown:
    try:
        drawn, about = file.read_text("utf-8"), json.loads(file.with_suffix(".json").read_text("utf-8"))
        numbers = file.with_suffix(".csv").read_text("utf-8")
        if "<svg" not in drawn or not list(csv.reader(numbers.splitlines())):
            raise ValueError("no SVG, or no numbers")
        return Shown(file.stem, str(about["title"]), str(about["caption"]), drawn, numbers)
    except (OSError, ValueError, KeyError, TypeError) as error:
        told = f"{type(error).__name__}: {error}"
        raise StorageError(
            f"{file} cannot be shown ({told}); draw it again with 'fedbeyond figure', or move it out of {file.parent}"
        ) from None
