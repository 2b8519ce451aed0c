"""Statistics of a table: paired differences to a baseline, confidence intervals, p-values and mean ranks.

A pair is a target and a seed on which both methods were run. Pairs that share a target are correlated, so intervals
and p-values hold for the unseen domains of the table: they test whether a difference exceeds the chance of the seeds
and targets that were run. They do not predict the difference on other domains.
"""

from collections.abc import Sequence
from math import nan, sqrt
from statistics import mean, stdev
from typing import NamedTuple

from ..errors import ConfigError, nearest
from .layout import Cells
from .table import Table, pairs_of

CONFIDENCE = 0.95  # of intervals
MAX_NAMED = 3  # methods, and pairs of each, that a caption names


class Difference(NamedTuple):
    """The difference of a method to a baseline, in points, over the pairs that both have."""

    method: str
    pairs: int
    mean: float
    low: float
    high: float
    t: float  # p-value of the paired t-test, after Holm's correction over all methods
    wilcoxon: float  # p-value of Wilcoxon's signed-rank test, also corrected


def differences(table: Table, baseline: str) -> list[Difference]:
    """Compare every other method with the baseline."""
    if baseline not in table.methods:
        raise ConfigError(f"baseline {baseline!r} is not among the runs; {nearest(baseline, table.methods)}")
    by_method = {method: paired(table, method, baseline) for method in table.methods if method != baseline}
    by_method = {method: gaps for method, gaps in by_method.items() if gaps}
    t = holm([t_test(gaps) for gaps in by_method.values()])
    signed = holm([signed_ranks(gaps) for gaps in by_method.values()])
    return [
        Difference(method, len(gaps), mean(gaps), *interval(gaps), p, q)
        for (method, gaps), p, q in zip(by_method.items(), t, signed, strict=True)
    ]


def paired(table: Table, method: str, baseline: str) -> list[float]:
    """Return the differences in points on every target and seed of both methods."""
    return [table.score(method, *pair) - table.score(baseline, *pair) for pair in pairs_of(table, [method, baseline])]


def interval(gaps: Sequence[float]) -> tuple[float, float]:
    """Return Student's confidence interval of the mean; NaN for a single pair."""
    from scipy import stats

    if len(gaps) < 2:
        return nan, nan
    half = stats.t.ppf((1 + CONFIDENCE) / 2, len(gaps) - 1) * stdev(gaps) / sqrt(len(gaps))
    return mean(gaps) - half, mean(gaps) + half


def t_test(gaps: Sequence[float]) -> float:
    """Return the p-value of the paired t-test, which assumes normal differences."""
    from scipy import stats

    if len(gaps) < 2 or len(set(gaps)) == 1:
        return 1.0
    return float(stats.ttest_1samp(gaps, 0.0).pvalue)


def signed_ranks(gaps: Sequence[float]) -> float:
    """Return the p-value of Wilcoxon's signed-rank test, which assumes only symmetric differences."""
    from scipy import stats

    if len(gaps) < 2 or not any(gaps):
        return 1.0
    sizes = {abs(gap) for gap in gaps}
    exact = len(gaps) <= 50 and 0.0 not in sizes and len(sizes) == len(gaps)
    return float(stats.wilcoxon(gaps, method="exact" if exact else "approx").pvalue)


def holm(values: Sequence[float]) -> list[float]:
    """Correct p-values for multiple tests (Holm, 1979)."""
    order = sorted(range(len(values)), key=lambda index: values[index])
    corrected, highest = [0.0] * len(values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(values) - rank) * values[index]))
        corrected[index] = highest
    return corrected


def ranks(table: Table) -> dict[str, float]:
    """Return the mean rank of each method over the pairs on which all were run; 1 is best, ties share a rank."""
    from scipy import stats

    scores = [
        [table.sign * table.score(method, *pair) for method in table.methods] for pair in pairs_of(table, table.methods)
    ]
    if not scores:
        return {}
    return dict(zip(table.methods, stats.rankdata(scores, axis=1).mean(0).tolist(), strict=True))


def rows(table: Table, baseline: str) -> Cells:
    """Return head and body of the table of differences."""
    mean_ranks = {method: f"{rank:.1f}" for method, rank in ranks(table).items()}
    head = ["method", f"above {baseline}", "95 % interval", "pairs", "p (t)", "p (Wilcoxon)", "mean rank"]
    body = [
        [
            each.method,
            f"{each.mean:+.1f}",
            f"{each.low:+.1f} to {each.high:+.1f}" if each.pairs > 1 else "-",
            str(each.pairs),
            format_p(each.t),
            format_p(each.wilcoxon),
            mean_ranks.get(each.method, "-"),
        ]
        for each in sorted(differences(table, baseline), key=lambda each: table.sign * each.mean)
    ]
    return [head, *body, [baseline, "0", "", "", "", "", mean_ranks.get(baseline, "-")]]


def format_p(p: float) -> str:
    """Format a p-value."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def caption(table: Table, baseline: str) -> str:
    """Describe the numbers."""
    return (
        f"Points above {baseline} in {table.measure}, {table.selection}, over pairs of target and seed; p-values after "
        f"Holm's correction over {len(table.methods) - 1} methods, intervals without it{ranked_pairs(table)}"
    )


def ranked_pairs(table: Table) -> str:
    """Say over how many pairs mean ranks are, and which methods lack the pairs that are left out."""
    if len(table.methods) < 2:
        return ""
    shared = set(pairs_of(table, table.methods))
    every = [
        (target, seed)
        for target in table.scored_targets
        for seed in table.seeds
        if any((method, target, seed) in table.picked for method in table.methods)
    ]
    count = f"{len(shared)} pair{'s' * (len(shared) != 1)}"
    text = f"; mean ranks over the {count} that all {len(table.methods)} methods have" if shared else "; no mean ranks"
    if len(shared) == len(every):
        return text
    lacking = {
        method: [f"{target} seed {seed}" for target, seed in every if (method, target, seed) not in table.picked]
        for method in table.methods
    }
    found = [f"{method} lacks {_shortened(pairs)}" for method, pairs in lacking.items() if pairs]
    return f"{text}; left out: {len(every) - len(shared)} of {len(every)} pairs ({_shortened(found, '; ')})"


def _shortened(items: Sequence[str], separator: str = ", ") -> str:
    rest = [f"{len(items) - MAX_NAMED} more"] if len(items) > MAX_NAMED else []
    return separator.join([*items[:MAX_NAMED], *rest])
