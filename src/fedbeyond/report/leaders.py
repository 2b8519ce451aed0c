"""The best methods of a table: the best average, and every average that a paired test cannot distinguish from it."""

from typing import NamedTuple

from .statistics import holm, paired, t_test
from .table import Table, best_first

MIN_PAIRS = 3  # pairs of target and seed: with fewer, the test finds hardly any difference
LEVEL = 0.05  # a smaller corrected p-value distinguishes two methods


class Leaders(NamedTuple):
    """The methods to mark in a table, best first, and what the mark means."""

    methods: tuple[str, ...]
    meaning: str


NO_LEADERS = Leaders((), "")


def leaders(table: Table) -> Leaders:
    """Return the methods to mark; none if fewer than two methods have an average."""
    best, *others = [method for method in best_first(table) if table.average(method)] or [""]
    if not others:
        return NO_LEADERS
    gaps = {method: paired(table, method, best) for method in others}
    tested = {method: values for method, values in gaps.items() if len(values) >= MIN_PAIRS}
    untested = [method for method in others if method not in tested]
    if not tested:
        most = max(map(len, gaps.values()))
        pairs = f"{most} pair{'s' * (most != 1)} of target and seed, fewer than {MIN_PAIRS}"
        return Leaders((best,), f"the best average (no test which others may be as good: {pairs})")
    p = dict(zip(tested, holm([t_test(values) for values in tested.values()]), strict=True))
    close = [method for method in tested if p[method] >= LEVEL]
    meaning = (
        "the best average and those not distinguishable from it (paired t-test over target and seed, p at least "
        f"{LEVEL} after Holm's correction)"
    )
    if untested:
        names = ", ".join(untested[:3]) + (f" and {len(untested) - 3} more" if len(untested) > 3 else "")
        meaning += f"; not tested, with fewer than {MIN_PAIRS} pairs: {names}"
    return Leaders((best, *close), meaning)
