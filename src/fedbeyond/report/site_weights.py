"""Figures of the sites' aggregation weights over rounds, and of GA's generalization gaps."""

from collections.abc import Sequence
from statistics import mean, stdev

from ..evaluation.selection import Line
from ..spec import Part, format_spec, parse
from .curves import Points, draw, label_rounds, legend_below, thinned
from .figure import INK, PALETTE, SOFT, Figure, drawing, panel_titles, panels, shortened
from .table import Table, best_first, spread

MAX_METHODS = 3  # in a figure
MAX_LABEL, MAX_TITLE = 16, 26  # characters of a site at an axis, and of a line above a panel
TOLERANCE = 1e-6  # weights that change less are constant
LAST = 0.1  # share of the rounds that counts as the end of training


def weights(table: Table) -> Figure | None:
    """Draw the aggregation weight of each site over rounds, for methods that change it."""
    about = "Aggregation weight of each site, for methods that change it from round to round"
    return _by_site(table, "weights", "Aggregation weights", about, "weight")


def gaps(table: Table) -> Figure | None:
    """Draw GA's generalization gaps over rounds."""
    about = (
        "The generalization gap of each site: how much worse (in loss, or in accuracy if GA is set so) the aggregated "
        "model is on the site's validation images than the site's own model. GA gives sites with large gaps more weight"
    )
    return _by_site(table, "gaps", "Generalization gaps", about, "gap")


@drawing
def gap_bars(table: Table) -> Figure | None:
    """Draw each source domain's gap at the end of training, with GA's weights and with fixed weights."""
    gaps_by_method = {method: gaps for method in best_first(table) if (gaps := last_gaps(table, method))}
    if not gaps_by_method:
        return None
    fixed = [method for method in gaps_by_method if has_fixed_weights(method)]
    adjusted = [method for method in gaps_by_method if method not in fixed][:MAX_METHODS]
    bases = {without_ga(method) for method in adjusted}
    methods = adjusted + [method for method in fixed if without_ga(method) in bases or not bases][:MAX_METHODS]
    sites = sorted({site for method in methods for site in gaps_by_method[method]})
    picture, axes = panels(2, across=2, width=3.4, height=2.6)
    data = [["method", "weights", "source", "mean gap", "std of gap", "values"]]
    width = 0.8 / len(methods)
    for index, method in enumerate(methods):
        gaps = gaps_by_method[method]
        means = [mean(gaps.get(site, [0.0])) for site in sites]
        spreads = [spread(gaps.get(site, [])) for site in sites]
        where = [i + (index - (len(methods) - 1) / 2) * width for i in range(len(sites))]
        colour, label = (SOFT, f"{method}, fixed weights") if method in fixed else (PALETTE[index], method)
        for axis, heights in zip(axes, (means, spreads), strict=True):
            axis.bar(where, heights, width * 0.92, color=colour, label=label)
        for site, values in sorted(gaps.items()):
            spelled = [f"{mean(values):.6f}", f"{stdev(values):.6f}" if len(values) > 1 else "-", str(len(values))]
            data.append([method, "fixed" if method in fixed else "GA's", site, *spelled])
    for axis, title in zip(axes, ("mean gap", "standard deviation of the gap"), strict=True):
        short = shortened(sites, MAX_LABEL)
        slanted = {} if sum(map(len, short)) <= 32 else {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
        axis.set_xticks(range(len(sites)), short, **slanted)
        axis.set_title(title)
        axis.grid(axis="x", visible=False)
    legend_below(picture, axes)
    caption = (
        "Each source domain's generalization gap at the end of training (the last tenth of the rounds, at least one), "
        "over all runs in which it took part: its mean, and its standard deviation (as in Figure 3 of the GA paper, "
        "which does not state over what they are computed)"
    )
    title = "Gaps with and without GA"
    if methods == adjusted:
        parts = (Part("ga", "default", {"step": 0}) if part.name == "ga" else part for part in parse(methods[0]))
        still = format_spec(tuple(parts))
        caption += f". No run has the gaps without GA: to see them, run {still}, whose weights stay equal"
        title = "Gaps at the end of training"
    return Figure("gap-bars", title, caption, picture, data)


def last_gaps(table: Table, method: str) -> dict[str, list[float]]:
    """Return the gaps of each site in the last rounds of all runs of a method."""
    gaps: dict[str, list[float]] = {}
    for (name, _, _), run in table.runs.items():
        for line in run[-max(1, int(LAST * len(run))) :] if name == method else ():
            for site, gap in numbers(line, "gaps").items():
                gaps.setdefault(site, []).append(gap)
    return gaps


def has_fixed_weights(method: str) -> bool:
    """Return whether a method measures gaps but does not adjust weights."""
    return any(part.name == "ga" and part.options.get("step") == 0 for part in parse(method))


def without_ga(method: str) -> str:
    """Return the spelling of a method without GA."""
    return format_spec(tuple(part for part in parse(method) if part.name != "ga"))


def sites_over_rounds(table: Table, method: str, target: str, kind: str) -> dict[str, Points]:
    """Return the weights or gaps of each site, for the rounds that have them."""
    by_site: dict[str, dict[int, list[float]]] = {}
    for (name, left_out, _), run in table.runs.items():
        for line in run if (name, left_out) == (method, target) else ():
            for site, value in numbers(line, kind).items():
                by_site.setdefault(site, {}).setdefault(line["round"] + 1, []).append(value)
    return {
        site: [(r, mean(v), spread(v), len(v)) for r, v in sorted(rounds.items())]
        for site, rounds in sorted(by_site.items())
    }


def numbers(line: Line, kind: str) -> dict[str, float]:
    """Return the weights of a line, or its gaps."""
    return (line.get("weights") if kind == "weights" else line.get("diagnostics", {}).get("gaps")) or {}


def weights_change(run: Sequence[Line]) -> bool:
    """Return whether weights change between rounds; only rounds with all sites are compared."""
    first: dict[str, float] = {}
    most = max(len(line["weights"]) for line in run)
    full = [line["weights"] for line in run if len(line["weights"]) == most]
    return any(abs(first.setdefault(site, w) - w) > TOLERANCE for weights in full for site, w in weights.items())


@drawing
def _by_site(table: Table, kind: str, title: str, about: str, unit: str) -> Figure | None:
    """Draw a row of panels for each method, a panel for each target (one or more domains), a line for each site."""
    with_gaps = {key for key, run in table.runs.items() if any(numbers(line, "gaps") for line in run)}
    changing = {key for key, run in table.runs.items() if weights_change(run)} if kind == "weights" else with_gaps
    methods = [method for method in best_first(table) if method in {key[0] for key in changing}]
    if not methods:
        return None
    ga = {key[0] for key in with_gaps}
    methods.sort(key=lambda method: method not in ga)  # GA's first: their weights follow from the gaps
    shown, of_target = methods[:MAX_METHODS], {key[1] for key in changing}
    targets = list(dict.fromkeys(target for _, target, _ in table.runs if target in of_target))
    names = sorted({s for r in table.runs.values() for line in r for s in numbers(line, kind)})
    colours = {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(names)}
    across, titles = min(len(targets), 4), panel_titles(targets, shown, MAX_TITLE)
    pairs = [(method, target) for method in shown for target in targets]
    picture, axes = panels(len(pairs), across=across, width=6.8 / min(across, 3), height=2.1, sharey="row")
    data = [["method", "target", "site", "round", unit, "std", "seeds"]]
    for axis, (method, target) in zip(axes, pairs, strict=True):
        for site, points in sites_over_rounds(table, method, target, kind).items():
            draw(axis, thinned(points), colours[site], site)
            data += [[method, target, site, str(r), f"{v:.6f}", f"{s:.6f}", str(n)] for r, v, s, n in points]
        axis.set_title(titles[target, method], fontsize=9)
        label_rounds(axis)
        if kind == "gaps":
            axis.axhline(0, color=INK, linewidth=0.7)
    for axis in axes[::across]:
        axis.set_ylabel(unit)
    legend_below(picture, axes, names)
    caption = f"{about}; one line for each site, mean over seeds"
    if len(table.seeds) > 1:
        caption += ", with a band of one standard deviation"
    if len(methods) > MAX_METHODS:
        caption += f"; {MAX_METHODS} of {len(methods)} such methods, GA's first, then the best"
    return Figure(f"ga-{kind}" if kind == "gaps" else kind, title, caption, picture, data)
