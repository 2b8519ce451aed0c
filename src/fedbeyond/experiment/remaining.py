"""Estimate the remaining time of runs from the time of their rounds so far."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any


def seconds_left(
    runs: Sequence[Mapping[str, Any]], seconds: Mapping[tuple[str, str, int], Sequence[float]], jobs: int
) -> float | None:
    """Return the seconds until all running and pending runs are done, `jobs` at a time; None before a timed round.

    A method without timed rounds is assumed to take the mean time of the others. If more runs than `jobs` are running,
    other processes help.
    """
    by_method: dict[str, list[float]] = {}
    for (method, _, _), times in seconds.items():
        by_method.setdefault(method, []).extend(times)
    round_seconds = {method: fmean(times) for method, times in by_method.items() if times}
    if not round_seconds:
        return None
    default = fmean(round_seconds.values())
    remaining: list[float] = [
        (run["rounds"] - run["rounds_done"]) * round_seconds.get(run["method"], default)
        for run in runs
        if run["state"] in ("running", "pending")
    ]
    counts = Counter(run["state"] for run in runs)
    at_a_time = max(counts["running"], min(jobs, len(remaining)), 1)
    return max(sum(remaining) / at_a_time, max(remaining, default=0.0))


def about(seconds: float) -> str:
    """Format an estimated time."""
    minutes = round(seconds / 60)
    if seconds < 45:
        return "less than a minute"
    if minutes < 60:
        return f"about {max(minutes, 1)} min"
    hours, rest = divmod(round(minutes / 10) * 10, 60)
    return f"about {hours} h" + (f" {rest} min" if rest and hours < 10 else "")
