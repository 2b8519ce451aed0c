"""Figures of how much an option matters: runs that differ in one option of one part of the method, and in no other."""

from collections.abc import Iterator, Mapping
from functools import cache
from statistics import mean, stdev
from typing import Any, NamedTuple

from ..errors import ConfigError
from ..experiment import registry
from ..spec import Part, parse, spell, spell_value
from .curves import legend_below, percent
from .figure import INK, PALETTE, Figure, drawing, panels
from .table import Table

MOST = 8  # figures: an ablation of four switches would have 32
WIDE = 20  # a largest value so many times the smallest asks for a logarithmic axis


class Swept(NamedTuple):
    """One option, and the method that stands for each of its values."""

    part: str
    option: str
    rest: str  # the method without that option
    methods: Mapping[str, str]  # by the value as it is spelled, in order


def figures(table: Table) -> list[Figure]:
    """A figure for every option that runs differ in; of many, for those with the most values."""
    found = sorted(sweeps(table.methods), key=lambda one: -len(one.methods))
    drawn = [sensitivity(table, one) for one in found[:MOST]]
    note = f". Runs differ so in {len(found)} ways; the {MOST} with the most values are drawn" * (len(found) > MOST)
    return [figure._replace(caption=figure.caption + note) for figure in drawn]


def sweeps(methods: tuple[str, ...]) -> Iterator[Swept]:
    """Every option of which there are at least two values while all others stay as they are."""
    found: dict[tuple[int, str, str], dict[str, tuple[Any, str]]] = {}
    for method in methods:
        try:
            parts = tuple(settled(str(part)) for part in parse(method))
        except ConfigError:  # a name that is no spelling
            continue
        for place, part in enumerate(parts):
            for option, value in part.options.items():
                alike = found.setdefault((place, option, spell(without(parts, place, option))), {})
                alike.setdefault(spell_value(value), (value, method))
    for (place, option, _), values in found.items():
        if len(values) > 1:
            ordered = sorted(values.items(), key=lambda item: order(item[1][0]))
            first = parse(ordered[0][1][1])
            rest = spell(without(first, place, option))
            yield Swept(first[place].name, option, rest, {spelled: method for spelled, (_, method) in ordered})


def without(parts: tuple[Part, ...], place: int, option: str) -> tuple[Part, ...]:
    """The same parts, one option of one of them unsaid."""
    others = {key: value for key, value in parts[place].options.items() if key != option}
    return (*parts[:place], parts[place]._replace(options=others), *parts[place + 1 :])


@cache
def settled(spelled: str) -> Part:
    """A part with all its options written out, in order; as it is, if nobody knows it here."""
    (part,) = parse(spelled)
    shelf = next((shelf for shelf in ("methods", "wrappers") if part.name in registry.known(shelf)), None)
    if shelf is None:
        return part._replace(options=dict(sorted(part.options.items())))
    factory = registry.find(shelf, part.name)
    preset = registry.presets(factory).get(part.preset)
    defaults = {name: parameter.default for name, parameter in registry.options(factory).items()}
    options = {**defaults, **(preset or {}), **part.options}
    return Part(part.name, "default" if preset is not None else part.preset, dict(sorted(options.items())))


def order(value: Any) -> tuple[int, float, str]:
    """Numbers by size, then all else by its name."""
    return (0, float(value), "") if is_number(value) else (1, 0.0, spell_value(value))


def is_number(value: Any) -> bool:
    """Whether a value can stand on an axis."""
    return isinstance(value, int | float) and not isinstance(value, bool)


@drawing
def sensitivity(table: Table, swept: Swept) -> Figure:
    """The metric against an option: each unseen domain, and their average."""
    options = [_read(spelled) for spelled in swept.methods]
    data = [[swept.option, "method", "target", table.metric, "std", "seeds"]]
    picture, (axis,) = panels(1, width=6.8, height=3.0)
    numeric = all(map(is_number, options))
    where = [float(value) for value in options] if numeric else [float(place) for place in range(len(options))]
    lines = {target: {s: table.on(m, target) for s, m in swept.methods.items()} for target in table.targets}
    if len(table.targets) > 1:
        lines["average"] = {spelled: table.average(method) for spelled, method in swept.methods.items()}
    for place, (target, found) in enumerate(lines.items()):
        aside = 0 if numeric else (place - (len(lines) - 1) / 2) * 0.06  # categories: beside each other, unconnected
        told = zip(where, found.values(), strict=True)
        points = [(x + aside, mean(v), stdev(v) if len(v) > 1 else 0.0) for x, v in told if v]
        colour, thick = (INK, 2.2) if target == "average" else (PALETTE[place % len(PALETTE)], 1.2)
        if points:
            x, y, spread = zip(*points, strict=True)
            look = {"color": colour, "linewidth": thick, "elinewidth": 0.9, "markersize": 4, "capsize": 2}
            axis.errorbar(x, y, spread, fmt="o-" if numeric else "o", label=target, **look)
        for (spelled, method), values in zip(swept.methods.items(), found.values(), strict=True):
            if values:
                std = f"{stdev(values):.4f}" if len(values) > 1 else "-"
                data.append([spelled, method, target, f"{mean(values):.4f}", std, str(len(values))])
    if not numeric:
        axis.set_xlim(-0.5, len(where) - 0.5)
        axis.grid(axis="x", visible=False)
    elif max(where) > WIDE * (least := min((x for x in where if x > 0), default=0)) and min(where) >= 0 < least:
        axis.set_xscale("symlog", linthresh=least) if min(where) == 0 else axis.set_xscale("log")
    axis.set_xticks(where, list(swept.methods))
    axis.minorticks_off()
    axis.set_xlabel(f"{swept.option} of {swept.part}")
    percent(axis, table.metric)
    legend_below(picture, [axis])
    caption = (
        f"{table.what[0].upper()}{table.what[1:]} of {swept.rest} under {len(options)} values of {swept.option}, all "
        f"else alike; {table.chosen}; mean{' and standard deviation' * (len(table.seeds) > 1)} over seeds"
    )
    name = f"sensitivity-{swept.rest}-{swept.option}"
    return Figure(_plain(name), f"How much {swept.option} matters to {swept.rest}", caption, picture, data)


def _read(spelled: str) -> Any:
    return parse(f"x(value={spelled})")[0].options["value"]


def _plain(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in name).strip("-")
