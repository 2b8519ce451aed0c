"""All figures of a report: those drawn from result lines, and those saved in the folders of runs."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..errors import StorageError
from . import classes, curves, sensitivity, site_weights
from .figure import Figure, Hover, svg
from .layout import as_csv
from .provenance import names_of_classes
from .table import Table

FOLDER = "figures"  # `fedbeyond figure` writes into this folder inside a folder of runs


class PageFigure(NamedTuple):
    """A figure as a page needs it."""

    name: str
    title: str
    caption: str
    svg: str
    csv: str
    hover: Mapping[str, Hover] = {}


def figures(table: Table, baseline: str, folders: Sequence[Path] = ()) -> list[Figure]:
    """Draw all figures that finished runs allow; the files in `folders` give the names of classes."""
    names = names_of_classes(folders)
    drawn = [
        curves.over_rounds(table, baseline),
        curves.against(table, baseline),
        *sensitivity.figures(table),
        site_weights.weights(table),
        site_weights.gaps(table),
        site_weights.gap_bars(table),
        classes.recall(table, baseline, names),
        classes.confusion(table, baseline, names),
    ]
    return [figure for figure in drawn if figure]


def page_figure(figure: Figure) -> PageFigure:
    """Convert a drawn figure for a page."""
    return PageFigure(figure.name, figure.title, figure.caption, svg(figure), as_csv(figure.data), figure.hover)


def saved_figures(folders: Sequence[Path]) -> list[PageFigure]:
    """Read the figures saved in folders of runs: name.svg with name.json and name.csv."""
    files = [file for folder in folders for file in sorted((folder / FOLDER).glob("*.svg"))]
    return [_read(file) for file in files]


def _read(file: Path) -> PageFigure:
    try:
        drawing, about = file.read_text("utf-8"), json.loads(file.with_suffix(".json").read_text("utf-8"))
        numbers = file.with_suffix(".csv").read_text("utf-8")
        if "<svg" not in drawing or not list(csv.reader(numbers.splitlines())):
            raise ValueError("no SVG, or no numbers")
        return PageFigure(file.stem, str(about["title"]), str(about["caption"]), drawing, numbers)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise StorageError(
            f"{file} cannot be shown ({reason}); draw it again with 'fedbeyond figure', or move it out of {file.parent}"
        ) from None
