"""How long runs will still take, from how long their rounds took so far: an estimate, and said as one."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any


def seconds_left(
    runs: Sequence[Mapping[str, Any]], seconds: Mapping[tuple[str, str, int], Sequence[float]], workers: int
) -> float | None:
    """Seconds until all that is running or to go is over, `workers` at a time; None before any round is timed.

    A method whose rounds were not timed yet is taken to be as slow as the others on average.
    """
    by_method: dict[str, list[float]] = {}
    for (method, _, _), spent in seconds.items():
        by_method.setdefault(method, []).extend(spent)
    paces = {method: fmean(spent) for method, spent in by_method.items() if spent}
    if not paces:
        return None
    usual = fmean(paces.values())
    lefts: list[float] = [
        (run["rounds"] - run["played"]) * paces.get(run["method"], usual)
        for run in runs
        if run["state"] in ("running", "to go")
    ]
    return max(sum(lefts) / workers, max(lefts, default=0.0))


def about(seconds: float) -> str:
    """As precisely as an estimate deserves."""
    minutes = round(seconds / 60)
    if seconds < 45:
        return "less than a minute"
    if minutes < 60:
        return f"about {max(minutes, 1)} min"
    hours, rest = divmod(round(minutes / 10) * 10, 60)
    return f"about {hours} h" + (f" {rest} min" if rest and hours < 10 else "")
