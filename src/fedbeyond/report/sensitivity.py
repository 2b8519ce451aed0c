"""Figures of the metric against an option, over runs that differ in this option of the method only."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from statistics import mean, stdev
from typing import Any, NamedTuple

from ..errors import ConfigError
from ..experiment import registry
from ..spec import Part, format_spec, format_value, parse, read_value
from .curves import label_percent, legend_below
from .figure import INK, PALETTE, Figure, drawing, panels
from .table import Table, capitalized, spread

MAX_FIGURES = 8  # an ablation of four switches would have 32
LOG_RATIO = 20  # ratio of largest to smallest value above which the axis is logarithmic


class Swept(NamedTuple):
    """An option, and the method that was run with each of its values."""

    part: str
    option: str
    rest: str  # the method without that option
    methods: Mapping[str, str]  # by the spelling of the value, in order


def figures(table: Table) -> list[Figure]:
    """Draw a figure for every option in which runs differ; of many options, for those with the most values."""
    swept = sorted(sweeps(table.methods), key=lambda each: -len(each.methods))
    note = f". Runs differ so in {len(swept)} ways; the {MAX_FIGURES} with the most values are drawn"
    return [sensitivity(table, each, note * (len(swept) > MAX_FIGURES)) for each in swept[:MAX_FIGURES]]


def sweeps(methods: tuple[str, ...]) -> Iterator[Swept]:
    """Yield every option that has at least two values while all other options are equal."""
    groups: dict[tuple[int, str, str], dict[str, tuple[Any, str]]] = {}
    for method in methods:
        try:
            parts = tuple(with_defaults(str(part)) for part in parse(method))
        except ConfigError:  # not a valid method spelling
            continue
        for index, part in enumerate(parts):
            for option, value in part.options.items():
                spelled_values = groups.setdefault((index, option, format_spec(without(parts, index, option))), {})
                spelled_values.setdefault(format_value(value), (value, method))
    for (index, option, _), values in groups.items():
        if len(values) > 1:
            ordered = sorted(values.items(), key=lambda item: order(item[1][0]))
            first_parts = parse(ordered[0][1][1])
            rest = format_spec(without(first_parts, index, option))
            yield Swept(first_parts[index].name, option, rest, {spelled: method for spelled, (_, method) in ordered})


def without(parts: tuple[Part, ...], index: int, option: str) -> tuple[Part, ...]:
    """Return the parts without one option of one part."""
    others = {key: value for key, value in parts[index].options.items() if key != option}
    return (*parts[:index], parts[index]._replace(options=others), *parts[index + 1 :])


@cache
def with_defaults(spelled: str) -> Part:
    """Return a part with all its options, defaults included, sorted by name; an unknown part gets no defaults."""
    (part,) = parse(spelled)
    group = next((group for group in ("methods", "wrappers") if part.name in registry.known(group)), None)
    if group is None:
        return part._replace(options=dict(sorted(part.options.items())))
    return registry.with_defaults(group, part)


def order(value: Any) -> tuple[int, float, str]:
    """Return the sort key of a value: numbers by size, then other values by spelling."""
    return (0, float(value), "") if is_number(value) else (1, 0.0, format_value(value))


def is_number(value: Any) -> bool:
    """Return whether a value can be placed on a numeric axis."""
    return isinstance(value, int | float) and not isinstance(value, bool)


@drawing
def sensitivity(table: Table, swept: Swept, note: str) -> Figure:
    """Draw the metric against an option, for each unseen domain and their average; `note` ends the caption."""
    options = [read_value(spelled) for spelled in swept.methods]
    data = [[swept.option, "method", "target", table.metric, "std", "seeds"]]
    picture, (axis,) = panels(1, width=6.8, height=3.0)
    numeric = all(map(is_number, options))
    where = [float(value) for value in (options if numeric else range(len(options)))]
    methods = swept.methods.values()
    lines = {target: [table.scores(method, target) for method in methods] for target in table.targets}
    if len(table.targets) > 1:
        lines["average"] = [table.average(method) for method in methods]
    for index, (target, scores) in enumerate(lines.items()):
        shift = 0 if numeric else (index - (len(lines) - 1) / 2) * 0.06  # categories: side by side, not connected
        points = []
        for place, (spelled, method), values in zip(where, swept.methods.items(), scores, strict=True):
            if values:
                points.append((place + shift, mean(values), spread(values)))
                std = f"{stdev(values):.4f}" if len(values) > 1 else "-"
                data.append([spelled, method, target, f"{mean(values):.4f}", std, str(len(values))])
        colour, thick = (INK, 2.2) if target == "average" else (PALETTE[index % len(PALETTE)], 1.2)
        if points:
            x, y, spreads = zip(*points, strict=True)
            look = {"color": colour, "linewidth": thick, "elinewidth": 0.9, "markersize": 4, "capsize": 2}
            axis.errorbar(x, y, spreads, fmt="o-" if numeric else "o", label=target, **look)
    if not numeric:
        axis.set_xlim(-0.5, len(where) - 0.5)
        axis.grid(axis="x", visible=False)
    elif max(where) > LOG_RATIO * (least := min((x for x in where if x > 0), default=0)) and min(where) >= 0 < least:
        axis.set_xscale("symlog", linthresh=least) if min(where) == 0 else axis.set_xscale("log")
    axis.set_xticks(where, list(swept.methods))
    axis.minorticks_off()
    axis.set_xlabel(f"{swept.option} of {swept.part}")
    label_percent(axis, table.metric)
    legend_below(picture, [axis])
    caption = (
        f"{capitalized(table.measure)} of {swept.rest} with {len(options)} values of {swept.option}, all else equal; "
        f"{table.selection}; mean{' and standard deviation' * (len(table.seeds) > 1)} over seeds{note}"
    )
    name = re.sub(r"[^\w-]", "-", f"sensitivity-{swept.rest}-{swept.option}").strip("-")
    return Figure(name, f"Sensitivity of {swept.rest} to {swept.option}", caption, picture, data)
