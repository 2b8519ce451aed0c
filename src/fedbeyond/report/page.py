"""One self-contained HTML page: the answer, the table, the curves, what left each site, how it was run."""

from importlib.resources import files
from statistics import mean
from typing import Any

import jinja2

from .. import __version__
from ..data.splits import unseen_domains
from ..results import Line
from . import beside
from .beside import Beside
from .table import Table, rows, runs, tabulate, unseen

WIDTH, HEIGHT = 320, 180


def page(lines: list[Line], rule: str = "source-validation", both: Beside | None = None) -> str:
    """The page of all finished runs, perhaps with a paper's numbers beside them."""
    table = tabulate(lines, rule)
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(files(__package__).joinpath("page.html").read_text("utf-8"))
    every = [run for key, run in runs(lines).items() if key[0] in table.methods]
    return template.render(
        table=table,
        rows=rows(table),
        both=both,
        pairs=beside.rows(both) if both else [],
        answer=answer(table),
        charts=[chart(every, table, target) for target in table.targets],
        width=WIDTH,
        height=HEIGHT,
        ledger=ledger(every, table),
        aside=[(run[-1]["method"], line["round"], entry) for run in every for line in run for entry in line["aside"]],
        version=__version__,
    )


def answer(table: Table) -> str:
    """What the table says, in a sentence, with its uncertainty."""
    averages = {method: table.average(method) for method in table.methods if table.average(method)}
    if not averages:
        return "No method has been run on every target yet."
    order = sorted(averages, key=lambda method: -mean(averages[method]))
    best, said = order[0], f"{mean(averages[order[0]]):.1f} %"
    text = f"Averaged over {len(table.targets)} unseen domains, {best} is highest with {said}"
    if len(order) > 1:
        text += f", {mean(averages[best]) - mean(averages[order[1]]):.1f} points above {order[1]}"
    seeds = len(averages[best])
    if seeds < 3:
        text += f". With {seeds} seed{'s' if seeds > 1 else ''} a small difference may be chance"
    return text + "."


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
