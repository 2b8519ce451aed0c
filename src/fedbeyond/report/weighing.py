"""Figures of how much sites count: weights that move from round to round, and GA's generalization gaps."""

from collections.abc import Sequence
from statistics import mean, stdev

from ..evaluation.selection import Line
from ..spec import Part, parse, spell
from .curves import Runs, draw, legend_below, rounds_below, thinned
from .figure import INK, PALETTE, SOFT, Figure, drawing, panels
from .table import Table, best_first

MOST = 3  # methods in a figure
STILL = 1e-6  # weights that move less than that do not move
LAST = 0.1  # of the rounds: the end of training

Points = list[tuple[int, float, float, int]]  # rounds played, mean over seeds, standard deviation, seeds


def weights(runs: Runs, table: Table) -> Figure | None:
    """The share of each site in the mean, round by round, of methods that change it."""
    about = "How much each site counts in the mean of a round, of methods that change it from round to round"
    return _by_site(runs, table, "weights", "How much each site counts", about, "weight")


def gaps(runs: Runs, table: Table) -> Figure | None:
    """GA's generalization gaps round by round."""
    about = (
        "The generalization gap of each site: how much worse (in loss, or in accuracy if GA was told so) the mean "
        "model does on the site's validation images than its own model did. GA lets sites with large gaps count more"
    )
    return _by_site(runs, table, "gaps", "Generalization gaps", about, "gap")


@drawing
def gap_bars(runs: Runs, table: Table) -> Figure | None:
    """Each source domain's gap at the end of training, with GA's weights and with fixed ones."""
    found = {method: told for method in best_first(table) if (told := ends(runs, method))}
    if not found:
        return None
    adjusted = [method for method in found if not fixed(method)][:MOST]
    bases = {base(method) for method in adjusted}
    kept = adjusted + [method for method in found if fixed(method) and (base(method) in bases or not bases)][:MOST]
    sites = sorted({site for method in kept for site in found[method]})
    picture, axes = panels(2, across=2, width=3.4, height=2.6)
    data = [["method", "weights", "source", "mean gap", "std of gap", "values"]]
    width = 0.8 / len(kept)
    for place, method in enumerate(kept):
        middle = [mean(found[method].get(site, [0.0])) for site in sites]
        spread = [stdev(v) if len(v := found[method].get(site, [])) > 1 else 0.0 for site in sites]
        where = [i + (place - (len(kept) - 1) / 2) * width for i in range(len(sites))]
        colour = SOFT if fixed(method) else PALETTE[place]
        for axis, heights in zip(axes, (middle, spread), strict=True):
            axis.bar(where, heights, width * 0.92, color=colour, label=f"{method}{', fixed weights' * fixed(method)}")
        for site in (site for site in sites if site in found[method]):
            values = found[method][site]
            spelled = [f"{mean(values):.6f}", f"{stdev(values):.6f}" if len(values) > 1 else "-", str(len(values))]
            data.append([method, "fixed" if fixed(method) else "GA's", site, *spelled])
    for axis, title in zip(axes, ("mean gap", "standard deviation of the gap"), strict=True):
        axis.set_xticks(range(len(sites)), sites, rotation=0 if len(sites) <= 4 else 45)
        axis.set_title(title)
        axis.grid(axis="x", visible=False)
    legend_below(picture, axes)
    caption = (
        "Each source domain's generalization gap at the end of training (the last tenth of the rounds, at least one), "
        "over all runs in which it took part: its mean, and its standard deviation (as in Figure 3 of the GA paper, "
        "which does not say over what it takes them)"
    )
    title = "Gaps with and without GA"
    if not any(map(fixed, kept)):
        still = spell(tuple(Part("ga", "default", {"step": 0}) if p.name == "ga" else p for p in parse(kept[0])))
        caption += f". No run tells the gaps without GA: add {still}, whose weights stay even, to see them too"
        title = "Gaps in the end"
    return Figure("gap-bars", title, caption, picture, data)


def ends(runs: Runs, method: str) -> dict[str, list[float]]:
    """The gaps of each site in the last rounds of all runs of a method."""
    told: dict[str, list[float]] = {}
    for (name, _, _), run in runs.items():
        for line in run[-max(1, int(LAST * len(run))) :] if name == method else ():
            for site, gap in line.get("told", {}).get("gaps", {}).items():
                told.setdefault(site, []).append(gap)
    return told


def fixed(method: str) -> bool:
    """Whether a method tells gaps and heeds them not."""
    return any(part.name == "ga" and part.options.get("step") == 0 for part in parse(method))


def base(method: str) -> str:
    """A method without GA."""
    return spell(tuple(part for part in parse(method) if part.name != "ga"))


def sites_over_rounds(runs: Runs, method: str, target: str, kind: str) -> dict[str, Points]:
    """The numbers of each site in the rounds that have them."""
    found: dict[str, dict[int, list[float]]] = {}
    for (name, left_out, _), run in runs.items():
        for line in run if (name, left_out) == (method, target) else ():
            for site, value in numbers(line, kind).items():
                found.setdefault(site, {}).setdefault(line["round"] + 1, []).append(value)
    return {
        site: [(r, mean(v), stdev(v) if len(v) > 1 else 0.0, len(v)) for r, v in sorted(rounds.items())]
        for site, rounds in sorted(found.items())
    }


def numbers(line: Line, kind: str) -> dict[str, float]:
    """The weights of a line, or its gaps."""
    return (line.get("weights") if kind == "weights" else line.get("told", {}).get("gaps")) or {}


def moving(run: Sequence[Line]) -> bool:
    """Whether weights are others in later rounds; a site that was not asked is no sign of that."""
    seen: dict[str, float] = {}
    told = [line for line in run if len(line.get("weights", {})) == max(len(other["weights"]) for other in run)]
    return any(abs(seen.setdefault(site, w) - w) > STILL for line in told for site, w in line["weights"].items())


@drawing
def _by_site(runs: Runs, table: Table, kind: str, title: str, about: str, unit: str) -> Figure | None:
    """A row of panels a method, a panel an unseen domain (or several, left out at once), a line a site."""
    shows = {
        key[:2]
        for key, run in runs.items()
        if (moving(run) if kind == "weights" else any(numbers(line, kind) for line in run))
    }
    methods = [method for method in best_first(table) if method in {name for name, _ in shows}]
    if not methods:
        return None
    telling = {name for (name, _, _), run in runs.items() if any(numbers(line, "gaps") for line in run)}
    methods.sort(key=lambda method: method not in telling)  # GA's first: its weights belong to its gaps
    kept, targets = methods[:MOST], list(dict.fromkeys(target for _, target in shows))
    targets = [target for target in dict.fromkeys(target for _, target, _ in runs) if target in targets]
    names = sorted({s for r in runs.values() for line in r for s in numbers(line, kind)})
    colours = {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(names)}
    across = min(len(targets), 4)
    picture, axes = panels(
        len(kept) * len(targets), across=across, width=6.8 / min(across, 3), height=2.1, sharey="row"
    )
    data = [["method", "target", "site", "rounds played", unit, "std", "seeds"]]
    for place, (method, target) in enumerate((m, t) for m in kept for t in targets):
        axis = axes[place]
        for site, points in sites_over_rounds(runs, method, target, kind).items():
            draw(axis, thinned(points), colours[site], site)
            data += [[method, target, site, str(r), f"{v:.6f}", f"{s:.6f}", str(n)] for r, v, s, n in points]
        axis.set_title(f"{target} unseen\n{method}", fontsize=9)
        rounds_below(axis)
        if kind == "gaps":
            axis.axhline(0, color=INK, linewidth=0.7)
    for axis in axes[::across]:
        axis.set_ylabel(unit)
    legend_below(picture, axes, names)
    caption = f"{about}; a line a site, mean over seeds"
    if len(table.seeds) > 1:
        caption += ", with a band of one standard deviation"
    if len(methods) > MOST:
        caption += f"; {MOST} of {len(methods)} such methods, GA's first, then the best"
    return Figure(f"ga-{kind}" if kind == "gaps" else kind, title, caption, picture, data)
