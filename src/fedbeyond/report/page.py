"""One self-contained HTML page: the answer, the table, the curves, what left each site, how it was run."""

from collections.abc import Sequence
from importlib.resources import files
from statistics import mean
from typing import Any

import jinja2

from .. import __version__
from ..data.splits import unseen_domains
from ..results import Line, judged
from . import beside, cost, statistics
from .beside import Beside
from .table import Table, rows, runs, unseen

WIDTH, HEIGHT = 320, 180


def page(
    lines: list[Line],
    table: Table,
    both: Beside | None = None,
    baseline: str | None = None,
    times: Sequence[Line] = (),
) -> str:
    """The page of all finished runs, perhaps with a paper's numbers beside them."""
    baseline = baseline or next((name for name in ("fedavg", *table.methods) if name in table.methods), "")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(files(__package__).joinpath("page.html").read_text("utf-8"))
    every = [run for key, run in runs(lines).items() if key[0] in table.methods]
    return template.render(
        table=table,
        rows=rows(table),
        both=both,
        pairs=beside.rows(both) if both else [],
        answer=answer(table, baseline),
        baseline=baseline,
        differences=statistics.rows(table, baseline) if len(table.methods) > 1 else [],
        about=statistics.caption(table, baseline),
        charts=[chart([judged(run) for run in every], table, target) for target in table.targets],
        width=WIDTH,
        height=HEIGHT,
        ledger=ledger(every, table),
        costs=cost.rows([line for run in every for line in run], times),
        about_costs=cost.CAPTION,
        aside=[(run[-1]["method"], line["round"], entry) for run in every for line in run for entry in line["aside"]],
        version=__version__,
    )


def answer(table: Table, baseline: str) -> str:
    """What the table says, in a sentence, with its uncertainty."""
    found = statistics.differences(table, baseline) if len(table.methods) > 1 else []
    if not found:
        return "One method alone has finished runs: there is nothing to compare yet."
    less = table.metric == "calibration_error"
    best = min(found, key=lambda one: one.mean) if less else max(found, key=lambda one: one.mean)
    gain = -best.mean if less else best.mean
    over = f"over {best.pairs} run{'s' if best.pairs > 1 else ''} of each"
    if gain <= 0:
        return f"On the unseen domain, no method is better than {baseline} on average ({over})."
    within = f" ± {best.spread:.1f}" if best.pairs > 1 else ""
    text = f"On the unseen domain, {best.method} is better than {baseline} by {gain:.1f}{within} points {over}"
    if best.pairs < 2:
        return text + ". One run says nothing about chance."
    sure = f"p = {statistics.chance(best.t)}".replace("= <", "<")
    verdict = "more than chance" if best.t < 0.05 else "which may well be chance"
    return f"{text}: {verdict} ({sure}, paired t-test, corrected for {len(found)} comparisons)."


def chart(every: list[list[Line]], table: Table, target: str) -> dict[str, Any]:
    """Accuracy on an unseen domain over rounds, one line a method (the mean of its seeds)."""
    curves = []
    for colour, method in enumerate(table.methods):
        found = [run for run in every if run[0]["method"] == method and target in unseen_domains(run[0]["target"])]
        if found:
            length = min(len(run) for run in found)
            heights = [mean(unseen(run[i], target) for run in found) for i in range(length)]
            step = WIDTH / max(length - 1, 1)
            points = " ".join(f"{i * step:.1f},{HEIGHT * (1 - value):.1f}" for i, value in enumerate(heights))
            curves.append({"method": method, "colour": colour % 8, "points": points})
    return {"target": target, "curves": curves}


def ledger(every: list[list[Line]], table: Table) -> list[tuple[str, str, str, int]]:
    """What leaves a site in a round, at most, under each method."""
    book: dict[tuple[str, str, str], int] = {}
    for run in every:
        for line in run:
            for kinds in line["left"].values():
                for kind, names in kinds.items():
                    for name, size in names.items():
                        key = (line["method"], kind, name)
                        book[key] = max(size, book.get(key, 0))
    return [(*key, size) for key, size in sorted(book.items(), key=lambda item: table.methods.index(item[0][0]))]
