"""A report written: a table or a page, to a file or to the terminal."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .._io import write
from ..errors import ConfigError, nearest
from ..evaluation import cautions
from ..experiment import results
from . import beside, cost, layout, statistics, table


@contextmanager
def all_kept() -> Iterator[None]:
    """No garbage is looked for: result lines are very many small things that all stay, and looking takes seconds."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@all_kept()
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
) -> None:
    """A table or page of runs, perhaps beside a paper's numbers or a baseline's, to a file or to the terminal."""
    styles = {"text": table.text, "markdown": table.markdown, "latex": table.latex, "csv": table.csv}
    paired = {"text": beside.text, "markdown": beside.markdown, "latex": beside.latex, "csv": beside.as_csv}
    if style not in (*styles, "html"):
        raise ConfigError(f"format {style!r} is not known; {nearest(style, [*styles, 'html'])}")
    if batchnorm not in (None, "average"):
        raise ConfigError(
            f"--batchnorm {batchnorm} is not known; give average, or leave it out for the runs' own scores"
        )
    lines = results.load(runs)
    lines = results.averaged(lines) if batchnorm else lines
    found = table.tabulate(lines, select, metric, where)
    if where == "own" and (paper or style == "html"):
        what = "a paper's numbers are" if paper else "the page is"
        raise ConfigError(f"--on own makes a table of its own, and {what} of unseen domains; leave one of them out")
    both = beside.beside(found, paper) if paper else None
    folders = [path for path in runs if path.is_dir()]
    if style == "html" or figures:
        from . import gallery, made

        classes = made.class_names(made.made(folders).configs)
        drawn = gallery.figures(lines, found, baseline or table.usual(found), classes)
    if style == "html":
        from .page import page

        content = page(lines, found, both, baseline, results.times(runs), folders, drawn)
        out = out or Path("report.html")
    else:
        content = paired[style](both) if both else styles[style](found)
    draw = {"text": layout.text, "markdown": layout.markdown, "latex": layout.latex}.get(style)
    if baseline and draw:
        content += "\n" + draw(statistics.rows(found, baseline), statistics.caption(found, baseline))
    if costs and draw:
        content += "\n" + draw(cost.rows(lines, results.times(runs)), cost.CAPTION)
    content += warned(cautions.of_runs(found.picked), style)
    if out is None:
        sys.stdout.write(content)
    else:
        write(out, content.encode())
        print(f"report: {out.resolve()}")
    if figures:
        from .figure import save

        for one in drawn:
            save(one, figures)
        print(f"figures: {', '.join(one.name for one in drawn) or 'none'} in {figures.resolve()}", file=sys.stderr)


def warned(warnings: list[str], style: str) -> str:
    """Print warnings under a table; the page has a place of its own for them, and CSV holds numbers alone."""
    lines = {
        "text": cautions.wrapped(warnings),
        "markdown": [f"- **warning:** {warning}" for warning in warnings],
        "latex": [f"% {line}" for line in cautions.wrapped(warnings)],
    }.get(style, [])
    return "".join(f"{line}\n" for line in ["", *lines]) if lines else ""
