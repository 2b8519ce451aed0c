"""Print the table, draw the figures and write the page of a finished bench."""

import sys
from collections.abc import Iterable
from pathlib import Path

from ..errors import FedbeyondError
from ..experiment import results
from ..experiment.bench import Outcome
from ..experiment.config import Config
from .figures.draw import draw
from .write import write_report


def report_bench(config: Config, out: Path, outcome: Outcome) -> None:
    """Print the table of a grid and write its page; nothing if every run failed."""
    if len(outcome.failures) == outcome.total:
        return
    print()
    lines = results.load([out])
    write_report([out], config.train.select, "text", None, lines=lines)
    draw_figures(config.bench.figures, out, outcome.device)
    write_report([out], config.train.select, "html", out / "report.html", lines=lines)


def draw_figures(kinds: Iterable[str], out: Path, device: str) -> None:
    """Draw figures of a grid's runs for its page; if a figure cannot be drawn, print the reason and continue."""
    for kind in kinds:
        try:
            for _, paths in draw(kind, [out], device=device):
                print(f"figure: {paths[1]}")
        except FedbeyondError as error:
            print(f"left out: figure {kind}: {error}", file=sys.stderr)
