"""Confusion matrices and recall by class on the unseen domain, for the best method and the baseline."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba

from ..evaluation.selection import Matrix, add_matrices
from .curves import legend_below
from .figure import INK, PALETTE, SOFT, Figure, Hover, drawing, panel_titles, panels, shortened
from .table import Table, best_first, number, spread

MAX_ALPHA = 0.6  # opacity of a cell with share 1: text on it stays readable on light and dark pages
MAX_NUMBERED = 10  # number of classes up to which cells show their numbers
MAX_BARS = 40  # number of classes up to which recall is drawn
MAX_LABEL, MAX_TITLE = 12, 30  # characters of a class name at an axis, and of a line above a matrix
MAX_ACROSS = 6  # confusion matrices side by side
MAX_TICKS = 24  # class names at an axis of a confusion matrix


def compared(table: Table, baseline: str) -> list[str]:
    """Return the best method, and the baseline if it is another method."""
    return list(dict.fromkeys([*best_first(table)[:1], *([baseline] if baseline in table.methods else [])]))


def picked(table: Table, method: str, target: str, key: str) -> list[Any]:
    """Return a value of the unseen domain's test scores, for the chosen round of each seed that has it."""
    lines = [table.picked.get((method, target, seed)) for seed in table.seeds]
    values = [line["scores"][target]["test"].get(key) for line in lines if line]
    return [value for value in values if value is not None]


@drawing
def confusion(table: Table, baseline: str, classes: Sequence[str] = ()) -> Figure | None:
    """Draw confusion matrices: a panel for each unseen domain, side by side, and a row for each method."""
    methods = compared(table, baseline)
    cells = {(m, t): add_matrices(picked(table, m, t, "confusion")) for m in methods for t in table.targets}
    cells = {key: counts for key, counts in cells.items() if counts}
    if not cells:
        return None
    names = named(classes, len(next(iter(cells.values()))))
    targets = [target for target in table.targets if any(target == there for _, there in cells)]
    grid = [
        [(method, target) for target in targets[start : start + MAX_ACROSS]]
        for start in range(0, len(targets), MAX_ACROSS)
        for method in methods
    ]
    across, titles = len(grid[0]), panel_titles(targets, methods, MAX_TITLE)
    picture, axes = panels(len(grid) * across, across=across, width=2.6, height=2.75)
    data, hover = [["method", "target", "true class", "predicted", "images"]], {}
    for index, row in enumerate(grid):
        shown = [(axes[index * across + place], key) for place, key in enumerate(row) if key in cells]
        for place, (axis, (method, target)) in enumerate(shown):
            counts = cells[method, target]
            squares, shares = matrix(axis, counts, names, first=place == 0)
            squares.set_gid(gid := f"matrix-{index}-{place}")
            hover[gid] = Hover("", [f"{names[i]} predicted as {names[j]}: {s:.1%}" for (i, j), s in shares.items()])
            axis.set_title(titles[target, method], fontsize=9)
            data += [
                [method, target, names[i], names[j], f"{count:g}"]
                for i, line in enumerate(counts)
                for j, count in enumerate(line)
            ]
        for place in range(across):
            if place >= len(row) or row[place] not in cells:
                axes[index * across + place].remove()
    caption = (
        f"Of the images of each class on the unseen domain (rows), the share in percent predicted as each class "
        f"(columns); {table.selection}, seeds together; {' and '.join(methods)}"
    )
    return Figure("confusion", "Confusion matrices", caption, picture, data, hover)


def named(classes: Sequence[str], count: int) -> list[str]:
    """Return the names of the classes, or their numbers if the names are not known."""
    return list(classes) if len(classes) == count else [str(number) for number in range(count)]


def matrix(
    axis: Any, counts: Matrix, names: list[str], first: bool
) -> tuple[PolyCollection, dict[tuple[int, int], float]]:
    """Draw counts as shares of their rows, a larger share darker; the first matrix of a row has names at its left.

    Return the squares that were drawn, and the shares that they show.
    """
    count = len(names)
    shares = {(i, j): n / max(sum(row), 1) for i, row in enumerate(counts) for j, n in enumerate(row) if n}
    squares = [[(j, i), (j + 1, i), (j + 1, i + 1), (j, i + 1)] for i, j in shares]
    colours = [to_rgba(PALETTE[0 if i == j else 1], MAX_ALPHA * share) for (i, j), share in shares.items()]
    drawn = PolyCollection(squares, facecolors=colours, edgecolors="none")
    axis.add_collection(drawn)
    for (i, j), share in shares.items():
        if share >= 0.005 and count <= MAX_NUMBERED:
            style = {"fontsize": 7.5, "color": INK, "ha": "center", "va": "center"}
            label = axis.text(j + 0.5, i + 0.53, f"{100 * share:.0f}", **style)
            label.set_in_layout(False)  # the text is inside its cell and needs no room in the layout
    axis.set(xlim=(0, count), ylim=(count, 0), aspect="equal")
    step = -(-count // MAX_TICKS)  # of more classes, every second or third is named
    ticks, short = [i + 0.5 for i in range(0, count, step)], shortened(names, MAX_LABEL)[::step]
    axis.set_xticks(ticks, short, rotation=90 if max(map(len, short)) > 2 else 0, fontsize=7.5)
    axis.set_yticks(ticks, short if first else [""] * len(short), fontsize=7.5)
    axis.tick_params(length=0)
    axis.grid(visible=False)
    axis.set_xlabel("predicted")
    axis.set_ylabel("true class" if first else "")
    return drawn, shares


def by_class(seeds: Sequence[Sequence[float | None]]) -> dict[int, list[float]]:
    """Return the recall of every class that has images, in percent, one value for each seed."""
    recalls: dict[int, list[float]] = {}
    for shares in seeds:
        for label, share in enumerate(shares):
            if share is not None:
                recalls.setdefault(label, []).append(100 * share)
    return recalls


@drawing
def recall(table: Table, baseline: str, classes: Sequence[str] = ()) -> Figure | None:
    """Draw the recall of each class."""
    methods = compared(table, baseline)
    values = {(m, t): picked(table, m, t, "recall") for m in methods for t in table.targets}
    values = {key: seeds for key, seeds in values.items() if seeds}
    count = len(next(iter(values.values()))[0]) if values else 0
    if not 0 < count <= MAX_BARS:
        return None
    names = named(classes, count)
    targets = [target for target in table.targets if any(target == there for _, there in values)]
    picture, axes = panels(len(targets), across=2, width=3.4, height=2.4, sharey=True)
    data, hover = [["method", "target", "class", "recall", "std", "seeds"]], {}
    width = 0.8 / len(methods)
    for axis, target in zip(axes, targets, strict=True):
        for index, method in enumerate(methods):
            recalls = by_class(values.get((method, target), []))
            where = [label + (index - (len(methods) - 1) / 2) * width for label in recalls]
            heights, spreads = np.array([(mean(v), spread(v)) for v in recalls.values()]).reshape(-1, 2).T
            colour = SOFT if method == baseline else PALETTE[0]
            bars = axis.bar(where, heights, width * 0.92, color=colour, label=method)
            for bar, label, values_of in zip(bars, recalls, recalls.values(), strict=True):
                bar.set_gid(gid := f"bar-{targets.index(target)}-{index}-{label}")
                hover[gid] = Hover("", [f"{names[label]}, {method}: {number(values_of)}"])
            axis.vlines(where, heights - spreads, heights + spreads, color=INK, linewidth=0.9)
            numbers = zip(recalls, heights, spreads, strict=True)
            data += [[method, target, names[i], f"{h:.4f}", f"{s:.4f}", str(len(recalls[i]))] for i, h, s in numbers]
        axis.set_title(f"{target} unseen")
        short = shortened(names, MAX_LABEL)
        axis.set_xticks(range(count), short, rotation=0 if sum(map(len, short)) < 30 else 90, fontsize=7.5)
        axis.set_ylim(0, 105)
        axis.grid(axis="x", visible=False)
    for axis in axes[::2]:
        axis.set_ylabel("recall (%)")
    legend_below(picture, axes)
    caption = (
        f"Of the images of each class on the unseen domain, the share that was predicted correctly; {table.selection}; "
        f"mean over seeds{', with a line of one standard deviation in both directions' * (len(table.seeds) > 1)}"
    )
    return Figure("recall", "Recall by class", caption, picture, data, hover)
