"""Compare a table of runs with the numbers that a paper prints; these are stored as CSV files in `papers/`."""

import csv
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from .. import spec
from ..errors import ConfigError, nearest
from . import layout
from .table import Table, best_first, labelled, majority_rows, number

TABLES = files(__package__).joinpath("papers")
PAPERS = tuple(sorted(file.name.removesuffix(".csv") for file in TABLES.iterdir() if file.name.endswith(".csv")))


class PrintedNumber(NamedTuple):
    """A number as a paper prints it."""

    table: str
    row: str
    method: str  # our spelling of the row; empty if we have no such method, or not the same one
    target: str
    metric: str
    value: str
    std: str


class PaperComparison(NamedTuple):
    """A table of our runs, and a table that a paper prints."""

    ours: Table
    paper: str
    table: str
    domains: tuple[str, ...]  # domains that the paper's averages are over
    theirs: tuple[PrintedNumber, ...]

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the unseen domains of both tables."""
        return tuple(dict.fromkeys([*self.ours.targets, *self.domains]))

    @property
    def metric(self) -> str:
        """Return the metric of the paper's numbers."""
        return self.theirs[0].metric

    @property
    def caption(self) -> str:
        """Describe the numbers and their source."""
        text = f"{self.ours.caption}. Rows 'as printed' hold the numbers of the paper itself ({self.paper}, "
        text += f"{self.table}; {self.metric}, %), measured by its authors under their own protocol, and not by us"
        if self.metric != self.ours.metric:
            text += f"; NOT COMPARABLE: theirs is {self.metric}, ours {self.ours.metric}"
        return text

    @property
    def same_domains(self) -> bool:
        """Return whether our averages are comparable: a mean over other domains must not be in their column."""
        return set(self.ours.targets) == set(self.domains)


@cache
def printed_numbers(paper: str) -> tuple[PrintedNumber, ...]:
    """Return all numbers of a paper."""
    if paper not in PAPERS:
        raise ConfigError(f"paper {paper!r} is not known; {nearest(paper, PAPERS)} (known: {', '.join(PAPERS)})")
    lines = csv.DictReader(TABLES.joinpath(f"{paper}.csv").read_text("utf-8").splitlines())
    return tuple(PrintedNumber(**line) for line in lines)


def compare_with_paper(ours: Table, name: str) -> PaperComparison:
    """Pair the runs with a paper's table, `ga/table1_pacs`, or with the one table of `ga` that fits them."""
    paper, _, table = name.partition("/")
    tables: dict[str, list[PrintedNumber]] = {}
    for entry in printed_numbers(paper):
        tables.setdefault(entry.table, []).append(entry)
    if table and table not in tables:
        raise ConfigError(f"{paper} has no table {table!r}; {nearest(table, tables)} (it has {', '.join(tables)})")
    table = table or _fitting_table(ours, paper, tables)
    metrics = [entry.metric for entry in tables[table]]
    metric = ours.metric if ours.metric in metrics else metrics[0]
    theirs = tuple(entry for entry in tables[table] if entry.metric == metric)
    targets = domains(table, tables)
    if not set(targets) & set(ours.targets):
        details = f"it has {', '.join(targets)}, the runs have {', '.join(ours.targets) or 'none'}"
        raise ConfigError(f"{paper}/{table} and the runs have no unseen domain in common: {details}")
    return PaperComparison(ours, paper, table, targets, theirs)


def domains(name: str, tables: dict[str, list[PrintedNumber]]) -> tuple[str, ...]:
    """Return the unseen domains of a table.

    For a table that prints averages only, return the domains of another table on the same data.
    """
    data = name.split("_")[1]
    same_data = (entries for other, entries in tables.items() if other.split("_")[1] == data)
    candidates = (
        dict.fromkeys(e.target for e in entries if e.target != "average") for entries in (tables[name], *same_data)
    )
    return tuple(next(filter(None, candidates), ()))


def rows(comparison: PaperComparison, baseline: str | None = None) -> layout.Cells:
    """Return head and body: our methods, best first, each with the paper's row; then rows that were not run."""
    ours, body = comparison.ours, []
    theirs: dict[tuple[str, str], dict[str, str]] = {}
    for entry in comparison.theirs:
        text = f"{entry.value} ± {entry.std}" if entry.std else entry.value
        theirs.setdefault((entry.row, entry.method), {})[entry.target] = text
    columns = [*comparison.targets, "average"]
    for method in best_first(ours):
        values = [ours.scores(method, target) for target in comparison.targets]
        body.append(
            [
                labelled(method, baseline),
                *map(number, [*values, ours.average(method) if comparison.same_domains else []]),
            ]
        )
        for row, spelling in [key for key in theirs if same_method(key[1], method)]:
            cells = theirs.pop((row, spelling))
            label = f"  as printed in {comparison.paper}, {comparison.table}"
            body.append([label, *(cells.get(column, "-") for column in columns)])
    for (row, _), cells in theirs.items():
        body.append([f"{row}, as printed", *(cells.get(column, "-") for column in columns)])
    body += majority_rows(ours, comparison.targets)
    return [["method", *columns], *body]


def as_csv(comparison: PaperComparison) -> str:
    """Format every number of ours and of the paper as CSV."""
    ours, source = comparison.ours, f"{comparison.paper}/{comparison.table}"
    cells = [["source", "row", "method", "target", "seed", "round", "metric", "value", "std"]]
    for (method, target, seed), line in ours.picked.items():
        value = f"{ours.score(method, target, seed):.4f}" if target in ours.scored_targets else ""
        cells.append(["ours", "", method, target, str(seed), str(line["round"] + 1), ours.metric, value, ""])
    for e in comparison.theirs:
        cells.append([source, e.row, e.method, e.target, "", "", e.metric, e.value, e.std])
    return layout.as_csv(cells)


def same_method(first: str, second: str) -> bool:
    """Return whether two spellings name one method; the order of options and 0 or 0.0 make no difference."""
    return bool(first and second) and spec.parse(first) == spec.parse(second)


def _fitting_table(ours: Table, paper: str, tables: dict[str, list[PrintedNumber]]) -> str:
    """Return the table that has all unseen domains of the runs and the most of their methods."""
    shared = {}
    for name, entries in tables.items():
        known = {entry.method for entry in entries}
        count = sum(any(same_method(method, other) for other in known) for method in ours.methods)
        if count and set(ours.targets) <= set(domains(name, tables)):
            shared[name] = count
    best = [name for name, count in shared.items() if count == max(shared.values())]
    if len(best) == 1:
        return best[0]
    problem = f"{len(best)} tables of {paper} fit" if best else f"no table of {paper} fits"
    names = best or list(tables)
    runs = f"{', '.join(ours.methods) or 'nothing finished'}; unseen: {', '.join(ours.targets) or 'none'}"
    raise ConfigError(f"{problem} the runs ({runs}); choose one, as in --beside {paper}/{names[0]}: {', '.join(names)}")
