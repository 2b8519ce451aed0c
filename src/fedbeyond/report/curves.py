"""Figures of how good methods are on the unseen domains: round by round, and against a baseline."""

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from matplotlib.ticker import MaxNLocator

from ..evaluation.rules import unseen
from ..evaluation.selection import Line, judged
from ..spec import unseen_domains
from . import statistics
from .figure import INK, PALETTE, SOFT, Figure, drawing, panels
from .table import METRICS, Table, best_first

Runs = Mapping[tuple[str, str, int], Sequence[Line]]  # by method, target, seed: the lines of a run in order

COLOURED = 6  # methods in colour, besides the baseline, where there are more methods than colours
SHOWN = 60  # rounds in a curve: of more, so many evenly spaced ones


@drawing
def over_rounds(runs: Runs, table: Table, baseline: str) -> Figure | None:
    """The metric on each unseen domain, a line a method."""
    if max((len(run) for run in runs.values()), default=0) < 2 or not table.measured:
        return None
    coloured = palette(table, baseline)
    data = [["method", "target", "rounds played", table.metric, "std", "seeds"]]
    picture, axes = panels(len(table.measured), across=2, width=3.4, height=2.4, sharey=True)
    for axis, target in zip(axes, table.measured, strict=True):
        for method in sorted(table.methods, key=lambda name: name in coloured):  # grey lines first: under the others
            points = curve(runs, table, method, target)
            data += [[method, target, *(f"{v:.4f}" if isinstance(v, float) else str(v) for v in p)] for p in points]
            draw(axis, thinned(points), coloured.get(method), method)
        axis.set_title(f"{target} unseen")
        rounds_below(axis)
    for axis in axes[::2]:
        percent(axis, table.metric)
    legend_below(picture, axes, [name for name in table.methods if name in coloured])
    return Figure("rounds", "Round by round", _about(table, coloured, baseline), picture, data)


def curve(runs: Runs, table: Table, method: str, target: str) -> list[tuple[int, float, float, int]]:
    """Rounds played, mean over seeds, standard deviation and number of seeds, in percent."""
    found = [run for (name, left_out, _), run in runs.items() if name == method and target in unseen_domains(left_out)]
    points = []
    for lines in zip(*map(judged, found), strict=False):
        values = [100 * unseen(line, target, table.metric) for line in lines]
        points.append((lines[0]["round"] + 1, mean(values), stdev(values) if len(values) > 1 else 0.0, len(values)))
    return points


def thinned(points: list[Any]) -> list[Any]:
    """At most so many points as one can see, with the first and the last of them."""
    if len(points) <= SHOWN:
        return points
    return [points[round(i * (len(points) - 1) / (SHOWN - 1))] for i in range(SHOWN)]


def draw(axis: Any, points: Sequence[tuple[int, float, float, int]], colour: str | None, label: str) -> None:
    """A curve in colour with a band of one standard deviation; in thin grey, without one, if it has no colour."""
    if not points:
        return
    played, values, spreads, counts = zip(*points, strict=True)
    mark = "o" if len(points) == 1 else None
    if colour is None:
        axis.plot(played, values, marker=mark, color=SOFT, alpha=0.3, linewidth=0.7, markersize=3)
        return
    axis.plot(played, values, marker=mark, color=colour, linewidth=1.5, markersize=3, label=label)
    if max(counts) > 1:
        low = [value - spread for value, spread in zip(values, spreads, strict=True)]
        high = [value + spread for value, spread in zip(values, spreads, strict=True)]
        axis.fill_between(played, low, high, color=colour, alpha=0.13, linewidth=0)


def palette(table: Table, baseline: str) -> dict[str, str]:
    """A colour for each method; where there are too many, for the best few and the baseline."""
    chosen = list(table.methods)
    if len(chosen) > len(PALETTE):
        best = best_first(table)[:COLOURED]
        chosen = [name for name in table.methods if name in {*best, baseline}]
    others = iter(PALETTE)
    return {name: INK if name == baseline else next(others) for name in chosen}


def rounds_below(axis: Any) -> None:
    """The axis of rounds."""
    axis.set_xlabel("rounds played")
    axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def percent(axis: Any, metric: str) -> None:
    """The axis of the metric, which is a share: a spread goes no further than that can."""
    low, high = axis.get_ylim()
    axis.set_ylim(max(low, 0), min(high, 101))
    axis.set_ylabel(f"{METRICS[metric].partition(' (')[0]} (%)")


def legend_below(picture: Any, axes: Sequence[Any], order: Sequence[str] = ()) -> None:
    """One key for all panels, under them."""
    handles = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    names = [name for name in order or handles if name in handles]
    if names:
        width = picture.get_figwidth() * 72  # points, of which a letter takes about five
        columns = max(1, min(len(names), int(width // (5 * max(map(len, names)) + 40))))
        picture.legend([handles[name] for name in names], names, loc="outside lower left", ncols=columns)


def _about(table: Table, coloured: Mapping[str, str], baseline: str) -> str:
    told = f"{table.what[0].upper()}{table.what[1:]} after each round, mean over seeds"
    if len(table.seeds) > 1:
        told += ", with a band of one standard deviation"
    if len(coloured) < len(table.methods):
        told += f". In colour: the best {COLOURED} on average, and {baseline}, the baseline, in that of the text; "
        told += f"thin and grey: the other {len(table.methods) - len(coloured)} methods"
    return told + (". The unseen domain is shown, not used to choose a round" if table.rule != "oracle" else "")


@drawing
def against(table: Table, baseline: str) -> Figure | None:
    """How far each method is above the baseline, with its confidence interval."""
    found = statistics.differences(table, baseline) if len(table.methods) > 1 else []
    found = sorted((one for one in found if one.pairs > 1), key=lambda one: one.mean)
    if not found:
        return None
    picture, (axis,) = panels(1, width=6.8, height=0.9 + 0.19 * len(found))
    for place, one in enumerate(found):
        sure = one.low > 0 or one.high < 0
        colour = PALETTE[0] if sure else SOFT
        axis.plot([one.low, one.high], [place, place], color=colour, linewidth=1.6)
        axis.plot([one.mean], [place], "o", color=colour, markersize=4.5)
    axis.axvline(0, color=INK, linewidth=1)
    axis.set_yticks(range(len(found)), [one.method for one in found])
    axis.set_ylim(-0.6, len(found) - 0.4)
    axis.set_xlabel(f"points above {baseline}")
    axis.grid(axis="y", visible=False)
    data = [["method", "points", "low", "high", "pairs", "p (t, Holm)"]]
    data += [
        [one.method, f"{one.mean:.4f}", f"{one.low:.4f}", f"{one.high:.4f}", str(one.pairs), f"{one.t:.6f}"]
        for one in reversed(found)
    ]
    caption = (
        f"{statistics.caption(table, baseline).partition(';')[0]}: mean and 95 % confidence interval of each method "
        f"by itself. In colour: intervals without zero; with {len(found)} methods, some may be so by chance "
        "(the table has p-values that allow for that)"
    )
    return Figure("differences", f"Above {baseline}, and how surely", caption, picture, data)
