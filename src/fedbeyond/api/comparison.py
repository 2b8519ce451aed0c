"""The result of a comparison: a table of methods and unseen domains, paired differences, plots, the report page."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigError, nearest
from ..evaluation import cautions
from ..evaluation.selection import Line
from ..report import curves, layout, statistics
from ..report.leaders import leaders
from ..report.table import Table, default_baseline, rows, tabulate
from .page import labelled, write_page
from .results import Run
from .rows import Rows, html, notes_html

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame  # type: ignore[import-untyped, unused-ignore]

    from .run import Grid


class Comparison:
    """Runs of several methods on the same targets and seeds. It shows itself as a table of their scores."""

    def __init__(self, grid: "Grid", runs: Sequence[Run], failures: Mapping[str, str], baseline: str | None) -> None:
        self._grid, self.runs, self.failures = grid, tuple(runs), dict(failures)
        self._labels = grid.labels
        self.baseline = baseline

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    def run(self, method: str, target: str | Sequence[str], seed: int = 0) -> Run:
        """Return one run, by the name of its method, its unseen domain (several as a list) and its seed."""
        target = target if isinstance(target, str) else "+".join(target)
        named = {(self._name(run), str(run.config.target), run.config.seed): run for run in self.runs}
        if (method, target, seed) not in named:
            known = [f"({', '.join(map(repr, key))})" for key in named]
            wanted = f"({method!r}, {target!r}, {seed})"
            raise ConfigError(f"no run {wanted} in this comparison; {nearest(wanted, known)}")
        return named[method, target, seed]

    @property
    def finished(self) -> bool:
        """Whether all rounds of all runs are done."""
        return not self.failures and all(run.finished for run in self.runs)

    def table(self, metric: str = "accuracy", select: str | None = None) -> Table:
        """Return the scores of all finished runs, as the report has them."""
        lines: list[Line] = [line for run in self.runs for line in run.lines]
        return tabulate(labelled(lines, self._labels), select, metric)

    def scores(self, metric: str = "accuracy", select: str | None = None) -> Rows:
        """Return a row for each finished run: method, unseen domain, seed, the chosen round, and its score."""
        table = self.table(metric, select)
        return Rows(
            [
                {"method": method, "target": target, "seed": seed, "round": line["round"] + 1}
                | {metric: table.score(method, target, seed) / 100 if target in table.scored_targets else None}
                for (method, target, seed), line in table.picked.items()
            ]
        )

    def to_pandas(self, metric: str = "accuracy", select: str | None = None) -> "DataFrame":
        """Return `scores` as a pandas data frame."""
        return self.scores(metric, select).to_pandas()

    def differences(self, baseline: str | None = None, metric: str = "accuracy", select: str | None = None) -> Rows:
        """Return a row for each other method: its mean difference to the baseline in points, over pairs of target and
        seed, with a 95 % interval and p-values after Holm's correction.
        """
        table = self.table(metric, select)
        found = statistics.differences(table, self._baseline(table, baseline))
        names = {"t": "p_t", "wilcoxon": "p_wilcoxon", "mean": "difference"}
        return Rows([{names.get(key, key): value for key, value in each._asdict().items()} for each in found])

    def plot(self, kind: str = "rounds", metric: str = "accuracy", baseline: str | None = None) -> "Figure":
        """Draw the metric over rounds ("rounds"), or the paired differences to a baseline ("differences")."""
        kinds = {"rounds": curves.over_rounds, "differences": curves.against}
        if kind not in kinds:
            raise ConfigError(f"plot: got {kind!r}; give 'rounds' or 'differences'")
        table = self.table(metric)
        drawn = kinds[kind](table, self._baseline(table, baseline))
        if drawn is None:
            raise ConfigError("there is nothing to plot yet: it takes two evaluated rounds, and two methods to compare")
        return drawn.picture

    def report(self, path: str | Path = "report.html", metric: str = "accuracy", select: str | None = None) -> Path:
        """Write the page of the report: answer, table, figures, costs, and what left each site."""
        baseline = self.baseline
        return write_page(self.runs, Path(path), self._labels, metric=metric, select=select, baseline=baseline)

    def resume(self) -> "Comparison":
        """Run what is missing, failed runs included; return this comparison."""
        resumed = self._grid.run()
        self.runs, self.failures = resumed.runs, resumed.failures
        return self

    def _name(self, run: Run) -> str:
        return self._labels.get(run.config.method, run.config.method)

    def _baseline(self, table: Table, baseline: str | None) -> str:
        return baseline or self.baseline or default_baseline(table)

    def _notes(self, table: Table) -> list[str]:
        done = sum(run.finished for run in self.runs)
        missing = f"{done} of {len(self._grid.cells)} runs are finished; .resume() continues"
        notes = [missing] if done < len(self._grid.cells) else []
        notes += [f"failed: {failure}" for failure in self.failures.values()]
        return notes + cautions.run_warnings(table.picked, self._classes())

    def _classes(self) -> tuple[str, ...]:
        classes = {run.classes for run in self.runs}
        return classes.pop() if len(classes) == 1 else ()

    def __repr__(self) -> str:
        table = self.table()
        notes = "".join(f"{line}\n" for line in cautions.wrap_warnings(self._notes(table)))
        if not table.picked:
            return notes or "no runs"
        best = leaders(table)
        caption = table.caption + (f"; star: {best.meaning}" if best.methods else "")
        return layout.text(rows(table), caption, best.methods) + notes

    def _repr_html_(self) -> str:
        table = self.table()
        notes = notes_html(self._notes(table))
        if not table.picked:
            return notes or "no runs"
        best = leaders(table)
        caption = table.caption + (f"; bold: {best.meaning}" if best.methods else "")
        return html(rows(table), caption, best.methods) + notes
