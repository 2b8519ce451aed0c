"""Confusion matrices and recall by class on the unseen domain, for the best method and the baseline."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba

from ..evaluation.selection import Matrix, add_matrices
from .curves import legend_below
from .figure import INK, PALETTE, SOFT, Figure, drawing, panels
from .table import Table, best_first, spread

MAX_ALPHA = 0.6  # opacity of a cell with share 1: text on it stays readable on light and dark pages
MAX_NUMBERED = 10  # number of classes up to which cells show their numbers
MAX_BARS = 40  # number of classes up to which recall is drawn
MAX_LABEL = 9  # characters of a class name at an axis


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
    """Draw confusion matrices: a row for each unseen domain, a panel for each method."""
    methods = compared(table, baseline)
    cells = {(m, t): add_matrices(picked(table, m, t, "confusion")) for t in table.targets for m in methods}
    cells = {key: counts for key, counts in cells.items() if counts}
    if not cells:
        return None
    names = named(classes, len(next(iter(cells.values()))))
    across = len({method for method, _ in cells})
    picture, axes = panels(len(cells), across=across, width=3.4, height=3.4, sharey=True)
    data = [["method", "target", "true class", "predicted", "images"]]
    for axis, ((method, target), counts) in zip(axes, cells.items(), strict=True):
        matrix(axis, counts, names)
        axis.set_title(f"{target} unseen\n{method}", fontsize=9)
        data += [
            [method, target, names[i], names[j], f"{count:g}"]
            for i, row in enumerate(counts)
            for j, count in enumerate(row)
        ]
    for axis in axes[::across]:
        axis.set_ylabel("true class")
    caption = (
        f"Of the images of each class on the unseen domain (rows), the share in percent predicted as each class "
        f"(columns); {table.selection}, seeds together; {' and '.join(methods)}"
    )
    return Figure("confusion", "Confusion matrices", caption, picture, data)


def named(classes: Sequence[str], count: int) -> list[str]:
    """Return the names of the classes, or their numbers if the names are not known."""
    return list(classes) if len(classes) == count else [str(number) for number in range(count)]


def matrix(axis: Any, counts: Matrix, names: list[str]) -> None:
    """Draw counts as shares of their rows; a darker cell is a larger share."""
    count = len(names)
    shares = {(i, j): n / max(sum(row), 1) for i, row in enumerate(counts) for j, n in enumerate(row) if n}
    squares = [[(j, i), (j + 1, i), (j + 1, i + 1), (j, i + 1)] for i, j in shares]
    colours = [to_rgba(PALETTE[0 if i == j else 1], MAX_ALPHA * share) for (i, j), share in shares.items()]
    axis.add_collection(PolyCollection(squares, facecolors=colours, edgecolors="none"))
    for (i, j), share in shares.items():
        if share >= 0.005 and count <= MAX_NUMBERED:
            style = {"fontsize": 7.5, "color": INK, "ha": "center", "va": "center"}
            label = axis.text(j + 0.5, i + 0.53, f"{100 * share:.0f}", **style)
            label.set_in_layout(False)  # the text is inside its cell and needs no room in the layout
    short = [name if len(name) <= MAX_LABEL else f"{name[: MAX_LABEL - 1]}…" for name in names]
    axis.set(xlim=(0, count), ylim=(count, 0), aspect="equal")
    ticks = [i + 0.5 for i in range(count)]
    axis.set_xticks(ticks, short, rotation=90 if max(map(len, short)) > 2 else 0, fontsize=7.5)
    axis.set_yticks(ticks, short, fontsize=7.5)
    axis.tick_params(length=0)
    axis.grid(visible=False)
    axis.set_xlabel("predicted")


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
    data = [["method", "target", "class", "recall", "std", "seeds"]]
    width = 0.8 / len(methods)
    for axis, target in zip(axes, targets, strict=True):
        for index, method in enumerate(methods):
            recalls = by_class(values.get((method, target), []))
            where = [label + (index - (len(methods) - 1) / 2) * width for label in recalls]
            heights, spreads = np.array([(mean(v), spread(v)) for v in recalls.values()]).reshape(-1, 2).T
            colour = SOFT if method == baseline else PALETTE[0]
            axis.bar(where, heights, width * 0.92, color=colour, label=method)
            axis.vlines(where, heights - spreads, heights + spreads, color=INK, linewidth=0.9)
            numbers = zip(recalls, heights, spreads, strict=True)
            data += [[method, target, names[i], f"{h:.4f}", f"{s:.4f}", str(len(recalls[i]))] for i, h, s in numbers]
        axis.set_title(f"{target} unseen")
        axis.set_xticks(range(count), names, rotation=0 if sum(map(len, names)) < 30 else 90, fontsize=7.5)
        axis.set_ylim(0, 105)
        axis.grid(axis="x", visible=False)
    for axis in axes[::2]:
        axis.set_ylabel("recall (%)")
    legend_below(picture, axes)
    caption = (
        f"Of the images of each class on the unseen domain, the share that was predicted correctly; {table.selection}; "
        f"mean over seeds{', with a line of one standard deviation in both directions' * (len(table.seeds) > 1)}"
    )
    return Figure("recall", "Recall by class", caption, picture, data)
