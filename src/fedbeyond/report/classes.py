"""Figures of which classes are told apart on the unseen domain, by the best method and by the baseline."""

from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba

from .curves import legend_below
from .figure import INK, PALETTE, SOFT, Figure, drawing, panels
from .table import Table, best_first

DEEPEST = 0.6  # how much colour a cell of one has: words on it stay readable, on light and dark
WRITTEN = 10  # classes up to which cells hold their numbers
WORD = 9  # letters of a class at an axis


def compared(table: Table, baseline: str) -> list[str]:
    """The best method, and the baseline if that is another."""
    return list(dict.fromkeys([*best_first(table)[:1], *([baseline] if baseline in table.methods else [])]))


def picked(table: Table, method: str, target: str, key: str) -> list[Any]:
    """What the chosen round of each seed says of the unseen domain, where it says it."""
    found = [table.picked.get((method, target, seed)) for seed in table.seeds]
    told = [line["scores"][target]["test"].get(key) for line in found if line]
    return [each for each in told if each is not None]


@drawing
def confusion(table: Table, baseline: str, classes: Sequence[str] = ()) -> Figure | None:
    """Which class was taken for which: a row an unseen domain, a panel a method."""
    methods = compared(table, baseline)
    cells = {(m, t): total(picked(table, m, t, "confusion")) for t in table.targets for m in methods}
    cells = {key: counts for key, counts in cells.items() if counts}
    if not cells:
        return None
    names = named(classes, len(next(iter(cells.values()))))
    across = len({method for method, _ in cells})
    picture, axes = panels(len(cells), across=across, width=3.4, height=3.4, sharey=True)
    data = [["method", "target", "true class", "answered", "images"]]
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
        f"Of the images of each class on the unseen domain (rows), the share in percent that was taken for each class "
        f"(columns); {table.chosen}, seeds together; {' and '.join(methods)}"
    )
    return Figure("confusion", "Which class is taken for which", caption, picture, data)


def total(found: Sequence[list[list[float]]]) -> list[list[float]]:
    """Matrices added up."""
    return [[sum(places) for places in zip(*rows, strict=True)] for rows in zip(*found, strict=True)]


def named(classes: Sequence[str], count: int) -> list[str]:
    """The classes by their names, or by their numbers if names are not known."""
    return list(classes) if len(classes) == count else [str(number) for number in range(count)]


def matrix(axis: Any, counts: list[list[float]], names: list[str]) -> None:
    """Counts as shares of their rows, the darker the more."""
    many = len(names)
    shares = {(i, j): count / max(sum(row), 1) for i, row in enumerate(counts) for j, count in enumerate(row) if count}
    squares = [[(j, i), (j + 1, i), (j + 1, i + 1), (j, i + 1)] for i, j in shares]
    colours = [to_rgba(PALETTE[0 if i == j else 1], DEEPEST * share) for (i, j), share in shares.items()]
    axis.add_collection(PolyCollection(squares, facecolors=colours, edgecolors="none"))
    for (i, j), share in shares.items():
        if share >= 0.005 and many <= WRITTEN:
            told = axis.text(j + 0.5, i + 0.53, f"{100 * share:.0f}", ha="center", va="center", fontsize=7.5, color=INK)
            told.set_in_layout(False)  # it is inside: nothing has to make room for it
    short = [name if len(name) <= WORD else f"{name[: WORD - 1]}…" for name in names]
    axis.set(xlim=(0, many), ylim=(many, 0), aspect="equal")
    axis.set_xticks([i + 0.5 for i in range(many)], short, rotation=90 if max(map(len, short)) > 2 else 0, fontsize=7.5)
    axis.set_yticks([i + 0.5 for i in range(many)], short, fontsize=7.5)
    axis.tick_params(length=0)
    axis.grid(visible=False)
    axis.set_xlabel("answered")


def by_class(seeds: Sequence[Sequence[float | None]]) -> dict[int, list[float]]:
    """The recall of every class that has images, in percent, one a seed."""
    found: dict[int, list[float]] = {}
    for shares in seeds:
        for label, share in enumerate(shares):
            if share is not None:
                found.setdefault(label, []).append(100 * share)
    return found


@drawing
def recall(table: Table, baseline: str, classes: Sequence[str] = ()) -> Figure | None:
    """Of the images of each class, the share that was told rightly."""
    methods = compared(table, baseline)
    found = {(m, t): picked(table, m, t, "recall") for m in methods for t in table.targets}
    found = {key: seeds for key, seeds in found.items() if seeds}
    if not found or len(next(iter(found.values()))[0]) > 40:  # more bars than one can tell apart
        return None
    count = len(next(iter(found.values()))[0])
    names = named(classes, count)
    targets = [target for target in table.targets if any(target == there for _, there in found)]
    picture, axes = panels(len(targets), across=2, width=3.4, height=2.4, sharey=True)
    data = [["method", "target", "class", "recall", "std", "seeds"]]
    width = 0.8 / len(methods)
    for axis, target in zip(axes, targets, strict=True):
        for place, method in enumerate(methods):
            told = by_class(found.get((method, target), []))
            where = [label + (place - (len(methods) - 1) / 2) * width for label in told]
            heights, spreads = (
                [mean(v) for v in told.values()],
                [stdev(v) if len(v) > 1 else 0.0 for v in told.values()],
            )
            colour = SOFT if method == baseline else PALETTE[0]
            axis.bar(where, heights, width * 0.92, color=colour, label=method)
            lows, highs = zip(*((h - s, h + s) for h, s in zip(heights, spreads, strict=True)), strict=True)
            axis.vlines(where, lows, highs, color=INK, linewidth=0.9)
            numbers = zip(told, heights, spreads, strict=True)
            data += [[method, target, names[i], f"{h:.4f}", f"{s:.4f}", str(len(told[i]))] for i, h, s in numbers]
        axis.set_title(f"{target} unseen")
        turned = 0 if sum(map(len, names)) < 30 else 90
        axis.set_xticks(range(count), names, rotation=turned, fontsize=7.5)
        axis.set_ylim(0, 105)
        axis.grid(axis="x", visible=False)
    for axis in axes[::2]:
        axis.set_ylabel("recall (%)")
    legend_below(picture, axes)
    caption = (
        f"Of the images of each class on the unseen domain, the share that was told rightly; {table.chosen}; mean over "
        f"seeds{', with a line of one standard deviation up and down' * (len(table.seeds) > 1)}"
    )
    return Figure("recall", "Class by class", caption, picture, data)
