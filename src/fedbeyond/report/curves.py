"""Figures of the metric on the unseen domains: over rounds, and as differences to a baseline."""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from statistics import mean
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from ..evaluation.rules import unseen
from ..evaluation.selection import evaluated
from ..spec import unseen_domains
from . import statistics
from .figure import INK, PALETTE, PAPER, SOFT, Figure, Hover, drawing, panels
from .table import METRICS, Table, best_first, capitalized, spread

Points = list[tuple[int, float, float, int]]  # round, mean over seeds, standard deviation, number of seeds

COLOURED = 6  # methods in colour, in addition to the baseline, if there are more methods than colours
OTHERS = "the grey lines"  # are hidden and shown together
MAX_POINTS = 60  # points of a curve; a longer one is thinned to evenly spaced rounds


@drawing
def over_rounds(table: Table, baseline: str) -> Figure | None:
    """Draw the metric on each unseen domain over rounds, a line for each method."""
    if max(map(len, table.runs.values()), default=0) < 2 or not table.scored_targets:
        return None
    coloured = palette(table, baseline)
    data, hover = [["method", "target", "round", table.metric, "std", "seeds", "chosen by"]], {}
    picture, axes = panels(len(table.scored_targets), across=2, width=3.4, height=2.4, sharey=True)
    for panel, (axis, target) in enumerate(zip(axes, table.scored_targets, strict=True)):
        for method in sorted(table.methods, key=lambda name: name in coloured):  # grey lines first, under the others
            points = curve(table, method, target)
            chosen = chosen_rounds(table, method, target)
            data += [
                [method, target, str(number), f"{value:.4f}", f"{std:.4f}", str(seeds), str(chosen[number])]
                for number, value, std, seeds in points
            ]
            shown, name = thinned(points, chosen), f"{panel}-{table.methods.index(method)}"
            for kind, artist in draw(axis, shown, coloured.get(method), method, chosen).items():
                artist.set_gid(f"{kind}-{name}")
                together = method if method in coloured else OTHERS
                hover[f"{kind}-{name}"] = Hover(together, point_texts(method, shown, chosen) if kind == "line" else ())
        axis.set_title(f"{target} unseen")
        label_rounds(axis)
    for axis in axes[::2]:
        label_percent(axis, table.metric)
    legend_below(picture, axes, [name for name in table.methods if name in coloured])
    return Figure("rounds", "Over rounds", _about(table, coloured, baseline), picture, data, hover)


def curve(table: Table, method: str, target: str) -> Points:
    """Return a point for each round that was evaluated, in percent."""
    runs = [run for (name, out, _), run in table.runs.items() if name == method and target in unseen_domains(out)]
    points = []
    for lines in zip(*map(evaluated, runs), strict=False):
        if any(target not in line["scores"] for line in lines):
            continue  # a guest sent no scores of this round
        values = [100 * unseen(line, target, table.metric) for line in lines]
        points.append((lines[0]["round"] + 1, mean(values), spread(values), len(values)))
    return points


def chosen_rounds(table: Table, method: str, target: str) -> Counter[int]:
    """Count the seeds that chose each round, as numbers of finished rounds."""
    lines = [table.picked.get((method, target, seed)) for seed in table.seeds]
    return Counter(line["round"] + 1 for line in lines if line)


def point_texts(method: str, points: Points, chosen: Counter[int]) -> list[str]:
    """Describe each point of a curve."""
    texts = []
    for number, value, std, seeds in points:
        text = f"{method}, round {number}: {value:.1f}" + (f" ± {std:.1f} ({seeds} seeds)" if seeds > 1 else "")
        if chosen[number]:
            text += f"; chosen by {chosen[number]} of {seeds} seeds" if seeds > 1 else "; the chosen round"
        texts.append(text)
    return texts


def thinned(points: Points, keep: Container[int] = ()) -> Points:
    """Return at most MAX_POINTS points, with the first and the last, and in addition the rounds to keep."""
    if len(points) <= MAX_POINTS:
        return points
    even = {round(i * (len(points) - 1) / (MAX_POINTS - 1)) for i in range(MAX_POINTS)}
    return [point for place, point in enumerate(points) if place in even or point[0] in keep]


def draw(axis: Any, points: Points, colour: str | None, label: str, chosen: Container[int] = ()) -> dict[str, Any]:
    """Draw a curve in its colour with a band of one standard deviation; without a colour, draw it thin and grey.

    Rings mark the chosen rounds of a curve in colour. Return what was drawn: the line and the band.
    """
    if not points:
        return {}
    rounds, values, spreads, counts = zip(*points, strict=True)
    mark = "o" if len(points) == 1 else None
    if colour is None:
        (line,) = axis.plot(rounds, values, marker=mark, color=SOFT, alpha=0.3, linewidth=0.7, markersize=3)
        return {"line": line}
    rings = [place for place, number in enumerate(rounds) if number in chosen]
    style = {"marker": "o", "markersize": 4.5, "markerfacecolor": PAPER, "markevery": rings} if rings else {}
    (line,) = axis.plot(
        rounds, values, **{"marker": mark, "markersize": 3, **style}, color=colour, linewidth=1.5, label=label
    )
    if max(counts) < 2:
        return {"line": line}
    low, high = np.subtract(values, spreads), np.add(values, spreads)
    return {"line": line, "band": axis.fill_between(rounds, low, high, color=colour, alpha=0.13, linewidth=0)}


def palette(table: Table, baseline: str) -> dict[str, str]:
    """Return a colour for each method; of too many methods, only for the best few and the baseline."""
    chosen = list(table.methods)
    if len(chosen) > len(PALETTE):
        best = best_first(table)[:COLOURED]
        chosen = [name for name in table.methods if name in {*best, baseline}]
    others = iter(PALETTE)
    return {name: INK if name == baseline else next(others) for name in chosen}


def label_rounds(axis: Any) -> None:
    """Label the x axis with rounds."""
    axis.set_xlabel("round")
    axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def label_percent(axis: Any, metric: str) -> None:
    """Label the y axis with the metric in percent, and limit it to possible values."""
    low, high = axis.get_ylim()
    axis.set_ylim(max(low, 0), min(high, 101))
    axis.set_ylabel(f"{METRICS[metric].partition(' (')[0]} (%)")


def legend_below(picture: Any, axes: Sequence[Any], order: Sequence[str] = ()) -> None:
    """Add one legend for all panels, under them."""
    handles = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    names = [name for name in order or handles if name in handles]
    if names:
        width = picture.get_figwidth() * 72  # in points; a character is about five wide
        columns = max(1, min(len(names), int(width // (5 * max(map(len, names)) + 40))))
        picture.legend([handles[name] for name in names], names, loc="outside lower left", ncols=columns)


def _about(table: Table, coloured: Mapping[str, str], baseline: str) -> str:
    text = f"{capitalized(table.measure)} after each round, mean over seeds"
    if len(table.seeds) > 1:
        text += ", with a band of one standard deviation"
    text += f". Rings: the chosen rounds of the {'seeds' if len(table.seeds) > 1 else 'runs'}"
    if len(coloured) < len(table.methods):
        text += f". In colour: the best {COLOURED} on average, and the baseline {baseline} in the text colour; "
        text += f"thin and grey: the other {len(table.methods) - len(coloured)} methods"
    if table.rule != "oracle":
        text += ". The unseen domain is only shown; it is not used to choose a round"
    return text


@drawing
def against(table: Table, baseline: str) -> Figure | None:
    """Draw the difference of each method to the baseline, with its confidence interval."""
    differences = statistics.differences(table, baseline) if len(table.methods) > 1 else []
    differences = sorted((each for each in differences if each.pairs > 1), key=lambda each: each.mean)
    if not differences:
        return None
    picture, (axis,) = panels(1, width=6.8, height=0.9 + 0.19 * len(differences))
    for index, each in enumerate(differences):
        significant = each.low > 0 or each.high < 0
        colour = PALETTE[0] if significant else SOFT
        axis.plot([each.low, each.high], [index, index], color=colour, linewidth=1.6)
        axis.plot([each.mean], [index], "o", color=colour, markersize=4.5)
    axis.axvline(0, color=INK, linewidth=1)
    axis.set_yticks(range(len(differences)), [each.method for each in differences])
    axis.set_ylim(-0.6, len(differences) - 0.4)
    axis.set_xlabel(f"points above {baseline}")
    axis.grid(axis="y", visible=False)
    data = [["method", "points", "low", "high", "pairs", "p (t, Holm)"]]
    data += [
        [each.method, f"{each.mean:.4f}", f"{each.low:.4f}", f"{each.high:.4f}", str(each.pairs), f"{each.t:.6f}"]
        for each in reversed(differences)
    ]
    caption = (
        f"{statistics.caption(table, baseline).partition(';')[0]}: mean and 95 % confidence interval of each method "
        f"alone. In colour: intervals without zero; with {len(differences)} methods, some may exclude zero by chance "
        "(the p-values of the table are corrected for that)"
    )
    return Figure("differences", f"Differences to {baseline}", caption, picture, data)
