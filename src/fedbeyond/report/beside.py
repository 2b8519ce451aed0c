"""Ours beside theirs: a table of runs with the numbers that a paper prints, which lie in `papers/` as CSV."""

import csv
import io
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from .. import spec
from ..errors import ConfigError, nearest
from . import layout
from .table import Table, majority_rows, number

SHELF = files(__package__).joinpath("papers")
PAPERS = tuple(sorted(file.name.removesuffix(".csv") for file in SHELF.iterdir() if file.name.endswith(".csv")))


class Printed(NamedTuple):
    """One number as a paper prints it."""

    table: str
    row: str
    method: str  # our spelling of the row; empty: we have no such method, or not the same
    target: str
    metric: str
    value: str
    std: str


class Beside(NamedTuple):
    """A table of ours, and one that a paper prints."""

    ours: Table
    paper: str
    table: str
    domains: tuple[str, ...]  # that the paper's averages are over
    theirs: tuple[Printed, ...]

    @property
    def targets(self) -> tuple[str, ...]:
        """The unseen domains of either."""
        return tuple(dict.fromkeys([*self.ours.targets, *self.domains]))

    @property
    def metric(self) -> str:
        """What the paper's numbers are."""
        return self.theirs[0].metric

    @property
    def caption(self) -> str:
        """What the numbers are, and whose."""
        told = f"{self.ours.caption}. Rows 'as printed' hold the numbers of the paper itself ({self.paper}, "
        told += f"{self.table}; {self.metric}, %), found by its authors under their own protocol, and not by us"
        if self.metric != self.ours.metric:
            told += f"; NOT COMPARABLE: theirs is {self.metric}, ours {self.ours.metric}"
        return told


@cache
def printed(paper: str) -> tuple[Printed, ...]:
    """All numbers of a paper."""
    if paper not in PAPERS:
        raise ConfigError(f"paper {paper!r} is not known; {nearest(paper, PAPERS)} (known: {', '.join(PAPERS)})")
    lines = csv.DictReader(SHELF.joinpath(f"{paper}.csv").read_text("utf-8").splitlines())
    return tuple(Printed(**line) for line in lines)


def beside(ours: Table, name: str) -> Beside:
    """The runs beside a paper's table, `ga/table1_pacs`, or beside the one table of `ga` that fits them."""
    paper, _, chosen = name.partition("/")
    tables: dict[str, list[Printed]] = {}
    for entry in printed(paper):
        tables.setdefault(entry.table, []).append(entry)
    if chosen and chosen not in tables:
        raise ConfigError(f"{paper} has no table {chosen!r}; {nearest(chosen, tables)} (it has {', '.join(tables)})")
    chosen = chosen or _fitting(ours, paper, tables)
    metrics = [entry.metric for entry in tables[chosen]]
    metric = ours.metric if ours.metric in metrics else metrics[0]
    theirs = tuple(entry for entry in tables[chosen] if entry.metric == metric)
    there = domains(chosen, tables)
    if not set(there) & set(ours.targets):
        told = f"it has {', '.join(there)}, the runs have {', '.join(ours.targets) or 'none'}"
        raise ConfigError(f"{paper}/{chosen} and the runs have no unseen domain in common: {told}")
    return Beside(ours, paper, chosen, there, theirs)


def domains(name: str, tables: dict[str, list[Printed]]) -> tuple[str, ...]:
    """The unseen domains of a table; of one that prints averages only, those of another table on the same data."""
    data = name.split("_")[1]
    alike = (entries for other, entries in tables.items() if other.split("_")[1] == data)
    every = (dict.fromkeys(e.target for e in entries if e.target != "average") for entries in (tables[name], *alike))
    return tuple(next(filter(None, every), ()))


def rows(both: Beside, plusminus: str = " ± ") -> layout.Cells:
    """Head and body: each method of ours with the paper's row right under it, then the rows of what was not run."""
    ours, body = both.ours, []
    theirs: dict[tuple[str, str], dict[str, str]] = {}
    for entry in both.theirs:
        told = entry.value + (f"{plusminus}{entry.std}" if entry.std else "")
        theirs.setdefault((entry.row, entry.method), {})[entry.target] = told
    # a mean over other domains than the paper's is not to stand in the column of its averages
    whole = set(ours.targets) == set(both.domains)
    columns = [*both.targets, "average"]
    for method in ours.methods:
        values = [*(ours.on(method, target) for target in both.targets), ours.average(method) if whole else []]
        body.append([method, *(number(each, plusminus) for each in values)])
        for row, spelled in [key for key in theirs if same(key[1], method)]:
            found = theirs.pop((row, spelled))
            label = f"  as printed in {both.paper}, {both.table}"
            body.append([label, *(found.get(column, "-") for column in columns)])
    for (row, _), found in theirs.items():
        body.append([f"{row}, as printed", *(found.get(column, "-") for column in columns)])
    body += majority_rows(ours, both.targets)
    return [["method", *columns], *body]


def text(both: Beside) -> str:
    """For a terminal."""
    return layout.text(rows(both), both.caption)


def markdown(both: Beside) -> str:
    """For a README."""
    return layout.markdown(rows(both), both.caption)


def latex(both: Beside) -> str:
    """For a paper that uses booktabs."""
    return layout.latex(rows(both, r" \pm "), both.caption)


def as_csv(both: Beside) -> str:
    """For other programs: every number of ours and of theirs."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["source", "row", "method", "target", "seed", "round", "metric", "value", "std"])
    for (method, target, seed), line in both.ours.picked.items():
        value = f"{both.ours.one(method, target, seed):.4f}" if target in both.ours.measured else ""
        writer.writerow(["ours", "", method, target, seed, line["round"], both.ours.metric, value, ""])
    for entry in both.theirs:
        told = [entry.row, entry.method, entry.target, "", "", entry.metric, entry.value, entry.std]
        writer.writerow([f"{both.paper}/{both.table}", *told])
    return file.getvalue()


def same(one: str, other: str) -> bool:
    """Whether two spellings name one method; the order of options and 0 or 0.0 make no difference."""
    return bool(one and other) and _parts(one) == _parts(other)


def _parts(text: str) -> list[tuple[str, str, dict[str, Any]]]:
    return [(part.name, part.preset, dict(part.options)) for part in spec.parse(text)]


def _fitting(ours: Table, paper: str, tables: dict[str, list[Printed]]) -> str:
    """The table with all unseen domains of the runs and the most of their methods."""
    shared = {}
    for name, entries in tables.items():
        known = {entry.method for entry in entries}
        count = sum(any(same(method, other) for other in known) for method in ours.methods)
        if count and set(ours.targets) <= set(domains(name, tables)):
            shared[name] = count
    best = [name for name, count in shared.items() if count == max(shared.values())]
    if len(best) == 1:
        return best[0]
    told = f"{len(best)} tables of {paper} fit" if best else f"no table of {paper} fits"
    names = best or list(tables)
    runs = f"{', '.join(ours.methods) or 'nothing finished'}; unseen: {', '.join(ours.targets) or 'none'}"
    raise ConfigError(f"{told} the runs ({runs}); choose one, as in --beside {paper}/{names[0]}: {', '.join(names)}")
