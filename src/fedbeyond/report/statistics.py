"""How sure one can be of a table: differences to a baseline, pair by pair, and ranks.

A pair is a target and a seed on which both methods were run. Pairs that share a target are alike, so that intervals
and p-values take the unseen domains at hand as given: they say whether a difference is more than the luck of seeds and
targets tried, not how large it will be on domains nobody has tried.
"""

from collections.abc import Sequence
from math import sqrt
from statistics import mean, stdev
from typing import NamedTuple

from ..errors import ConfigError, nearest
from .layout import Cells
from .table import Table

SURE = 0.95  # of confidence intervals


class Difference(NamedTuple):
    """How much a method is above a baseline, in points, over the pairs that both have."""

    method: str
    pairs: int
    mean: float
    low: float
    high: float
    t: float  # p-value of the paired t-test, after Holm's correction over all methods
    wilcoxon: float  # that of Wilcoxon's signed-rank test, likewise

    @property
    def spread(self) -> float:
        """Half the confidence interval."""
        return (self.high - self.low) / 2


def differences(table: Table, baseline: str) -> list[Difference]:
    """Every other method against the baseline."""
    if baseline not in table.methods:
        raise ConfigError(f"--baseline {baseline} is not among the runs; {nearest(baseline, table.methods)}")
    found = {method: paired(table, method, baseline) for method in table.methods if method != baseline}
    found = {method: gaps for method, gaps in found.items() if gaps}
    t = holm([t_test(gaps) for gaps in found.values()])
    signed = holm([signed_ranks(gaps) for gaps in found.values()])
    return [
        Difference(method, len(gaps), mean(gaps), *interval(gaps), p, q)
        for (method, gaps), p, q in zip(found.items(), t, signed, strict=True)
    ]


def paired(table: Table, method: str, baseline: str) -> list[float]:
    """The differences in points on every target and seed that both were run on."""
    pairs = [(target, seed) for target in table.measured for seed in table.seeds]
    both = [pair for pair in pairs if (method, *pair) in table.picked and (baseline, *pair) in table.picked]
    return [table.one(method, *pair) - table.one(baseline, *pair) for pair in both]


def interval(gaps: Sequence[float]) -> tuple[float, float]:
    """Student's confidence interval of the mean; of a single pair, none."""
    from scipy import stats

    if len(gaps) < 2:
        return float("nan"), float("nan")
    half = stats.t.ppf((1 + SURE) / 2, len(gaps) - 1) * stdev(gaps) / sqrt(len(gaps))
    return mean(gaps) - half, mean(gaps) + half


def t_test(gaps: Sequence[float]) -> float:
    """The p-value of a mean this far from zero, if differences were normal around zero."""
    from scipy import stats

    if len(gaps) < 2 or len(set(gaps)) == 1:
        return 1.0
    return float(stats.ttest_1samp(gaps, 0.0).pvalue)


def signed_ranks(gaps: Sequence[float]) -> float:
    """The p-value of Wilcoxon's test, which asks only that differences spread alike above and below zero."""
    from scipy import stats

    if len(gaps) < 2 or not any(gaps):
        return 1.0
    return float(stats.wilcoxon(gaps, method="exact" if _exact(gaps) else "approx").pvalue)


def _exact(gaps: Sequence[float]) -> bool:
    sizes = [abs(gap) for gap in gaps]
    return len(sizes) <= 50 and 0.0 not in sizes and len(set(sizes)) == len(sizes)


def holm(values: Sequence[float]) -> list[float]:
    """P-values that hold for all tests together (Holm, 1979)."""
    order = sorted(range(len(values)), key=lambda place: values[place])
    corrected, highest = [0.0] * len(values), 0.0
    for tried, place in enumerate(order):
        highest = max(highest, min(1.0, (len(values) - tried) * values[place]))
        corrected[place] = highest
    return corrected


def ranks(table: Table) -> dict[str, float]:
    """The mean rank of each method over the pairs on which all were run; 1 is best, ties share."""
    from scipy import stats

    pairs = [(target, seed) for target in table.measured for seed in table.seeds]
    whole = [pair for pair in pairs if all((method, *pair) in table.picked for method in table.methods)]
    sign = 1 if table.metric == "calibration_error" else -1  # less is better, or more is
    places = [stats.rankdata([sign * table.one(method, *pair) for method in table.methods]) for pair in whole]
    return {method: mean(float(place[i]) for place in places) for i, method in enumerate(table.methods) if places}


def rows(table: Table, baseline: str) -> Cells:
    """Header and body of a table of differences."""
    found, mean_ranks = differences(table, baseline), ranks(table)
    head = ["method", f"above {baseline}", "95 % interval", "pairs", "p (t)", "p (Wilcoxon)", "mean rank"]
    body = [
        [
            one.method,
            f"{one.mean:+.1f}",
            f"{one.low:+.1f} to {one.high:+.1f}" if one.pairs > 1 else "-",
            str(one.pairs),
            chance(one.t),
            chance(one.wilcoxon),
            rank(mean_ranks, one.method),
        ]
        for one in sorted(found, key=lambda one: -one.mean)
    ]
    return [head, *body, [baseline, "0", "", "", "", "", rank(mean_ranks, baseline)]]


def rank(found: dict[str, float], method: str) -> str:
    """A mean rank as it is printed."""
    return f"{found[method]:.1f}" if method in found else "-"


def chance(p: float) -> str:
    """A p-value as it is printed."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def caption(table: Table, baseline: str) -> str:
    """What the numbers are."""
    return (
        f"Points above {baseline} in {table.what}, {table.chosen}, over pairs of target and seed; p-values after "
        f"Holm's correction over {len(table.methods) - 1} methods"
    )
