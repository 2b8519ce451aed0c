"""Write a report: a table or a page, to a file or to the terminal."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .._io import write
from ..errors import ConfigError, nearest
from ..evaluation import cautions
from ..evaluation.selection import Line
from ..experiment import results
from . import cost, layout, paper_comparison, statistics, table
from .leaders import NO_LEADERS, leaders

LAYOUTS = {"text": layout.text, "markdown": layout.markdown, "latex": layout.latex}
MARKS = {"text": "star", "markdown": "bold", "latex": "bold"}  # of the best averages
FORMATS = (*LAYOUTS, "csv", "html")


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection: result lines are many small objects that stay, and scanning them takes seconds."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@without_garbage_collection()
def write_report(
    runs: list[Path],
    select: str | None,
    style: str,
    out: Path | None,
    paper: str | None = None,
    metric: str = "accuracy",
    baseline: str | None = None,
    costs: bool = False,
    where: str = "unseen",
    figures: Path | None = None,
    batchnorm: str | None = None,
    lines: list[Line] | None = None,
    quiet: bool = False,
) -> None:
    """Write a table or page of runs; optionally with a paper's numbers, differences to a baseline, costs, figures.

    `lines` are the result lines of the runs, if they have been loaded already. `quiet` does not print the file's name.
    """
    if style not in FORMATS:
        raise ConfigError(f"format {style!r} is not known; {nearest(style, FORMATS)}")
    if batchnorm not in (None, "average"):
        raise ConfigError(
            f"--batchnorm {batchnorm} is not known; give average, or leave it out for the runs' own scores"
        )
    lines = results.load(runs) if lines is None else lines
    lines = results.averaged(lines) if batchnorm else lines
    ours = table.tabulate(lines, select, metric, where)
    if where == "own" and (paper or style == "html"):
        option = f"--beside {paper}" if paper else "--format html"
        raise ConfigError(
            f"--on own cannot be combined with {option}, which is for unseen domains; leave out one of them"
        )
    comparison = paper_comparison.compare_with_paper(ours, paper) if paper else None
    folders = [path for path in runs if path.is_dir()]
    if style == "html" or figures:
        from . import gallery

        drawn = gallery.figures(ours, baseline or table.default_baseline(ours), folders)
    if style == "html":
        from .page import page

        content = page(lines, ours, comparison, baseline, results.times(runs), folders, drawn)
        out = out or Path("report.html")
    elif style == "csv":
        content = paper_comparison.as_csv(comparison) if comparison else table.csv(ours)
    else:
        rows = paper_comparison.rows(comparison, baseline) if comparison else table.rows(ours, baseline)
        best = leaders(ours) if not comparison or comparison.same_domains else NO_LEADERS
        caption = (comparison or ours).caption + (f"; {MARKS[style]}: {best.meaning}" if best.methods else "")
        content = LAYOUTS[style](rows, caption, {table.labelled(method, baseline) for method in best.methods})
        if baseline:
            content += "\n" + LAYOUTS[style](statistics.rows(ours, baseline), statistics.caption(ours, baseline))
        if costs:
            content += "\n" + LAYOUTS[style](cost.rows(lines, results.times(runs)), cost.CAPTION)
    content += format_warnings(named_warnings(ours, folders), style)
    if out is None:
        sys.stdout.write(content)
    else:
        write(out, content.encode())
        if not quiet:
            print(f"report: {out.resolve()}")
    if figures:
        from .figure import save

        for figure in drawn:
            save(figure, figures)
        print(
            f"figures: {', '.join(figure.name for figure in drawn) or 'none'} in {figures.resolve()}", file=sys.stderr
        )


def named_warnings(ours: table.Table, folders: list[Path]) -> list[str]:
    """Return the warnings of a table, with names of classes if the folders of runs give them."""
    warnings = cautions.run_warnings(ours.picked)
    if not warnings or not folders:
        return warnings
    from .provenance import names_of_classes

    return cautions.run_warnings(ours.picked, names_of_classes(folders))


def format_warnings(warnings: list[str], style: str) -> str:
    """Format warnings for the end of a table; the page shows them itself, and CSV holds only numbers."""
    lines = {
        "text": cautions.wrap_warnings(warnings),
        "markdown": [f"- **warning:** {warning}" for warning in warnings],
        "latex": [f"% {line}" for line in cautions.wrap_warnings(warnings)],
    }.get(style, [])
    return "".join(f"{line}\n" for line in ["", *lines]) if lines else ""
