"""What methods cost: bytes up and down and kept at a site, operations there, and seconds, of a round."""

from collections.abc import Sequence
from statistics import mean, median

from ..evaluation.selection import Line
from .layout import Cells

HEAD = ["method", "model", "sent", "up", "of parameters", "down", "kept", "FLOPs", "seconds", "times FedAvg"]
CAPTION = (
    "A round on average: bytes that leave a site, reach it and stay there (mean over sites and rounds), and seconds "
    "(median, evaluation on every domain included, on the machine that made these results); where they were counted, "
    "the model's parameters, numbers that a site sends and its floating-point operations (mean over sites, last round)"
)
BY_SITE = "Bytes of a round at each site, mean over its rounds: what leaves it, by kind, what reaches it, what it keeps"
KINDS = ("parameters", "statistics", "scalars", "data-derived", "undeclared")


def rows(lines: Sequence[Line], times: Sequence[Line]) -> Cells:
    """Header and body: the mean over the sites of a round, of all rounds of a method; only columns that say something.

    Results of an older version have no counts, and those without times no seconds.
    """
    methods = list(dict.fromkeys(line["method"] for line in lines))
    usual = seconds(times, "fedavg")
    body = []
    for method in methods:
        spent = seconds(times, method)
        own = [line for line in lines if line["method"] == method]
        counted = [line for line in times if line["method"] == method and "flops" in line]
        parameters = [kinds.get("parameters", 0) for line in own for kinds in left(line).values()]
        body.append(
            [
                method,
                many(_middle([line["parameters"] for line in counted])),
                many(_middle([count for line in counted for count in line["sent"].values()])),
                size(_middle([sum(kinds.values()) for line in own for kinds in left(line).values()])),
                size(_middle(parameters)),
                size(_middle([count for line in own for count in line.get("down", {}).values()])),
                size(_middle([count for line in own for count in line.get("kept", {}).values()])),
                many(_middle([count for line in counted for count in line["flops"].values()])),
                f"{spent:.2f}" if spent else "-",
                f"{spent / usual:.1f}" if spent and usual else "-",
            ]
        )
    told = [place for place in range(len(HEAD)) if any(row[place] != "-" for row in body)]
    return [[row[place] for place in told] for row in (HEAD, *body)]


def by_site(lines: Sequence[Line]) -> Cells:
    """Header and body: bytes at each site under each method, a column for each kind of thing that leaves any."""
    found: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        for site in line["left"]:
            found.setdefault((line["method"], site), []).append(line)
    kinds = [kind for kind in KINDS if any(kind in sent for line in lines for sent in left(line).values())]
    body = []
    for (method, site), own in found.items():
        sent = [size(mean(left(line)[site].get(kind, 0) for line in own)) for kind in kinds]
        stays = [
            size(_middle([line[key][site] for line in own if site in line.get(key, {})])) for key in ("down", "kept")
        ]
        body.append([method, site, *sent, *stays])
    return [["method", "site", *kinds, "down", "kept"], *body]


def left(line: Line) -> dict[str, dict[str, int]]:
    """Bytes that left each site in a round, by kind."""
    return {site: {kind: sum(names.values()) for kind, names in kinds.items()} for site, kinds in line["left"].items()}


def seconds(times: Sequence[Line], method: str) -> float | None:
    """The median time of a round, with its evaluation on every domain."""
    found = [line["seconds"] for line in times if line["method"] == method]
    return median(found) if found else None


def _middle(counts: Sequence[int]) -> float | None:
    return mean(counts) if counts else None


def size(count: float | None) -> str:
    """Bytes as people say them."""
    return _said(count, ("B", "kB", "MB", "GB"))


def many(count: float | None) -> str:
    """A large number as people say it."""
    return _said(count, ("", "k", "M", "G", "T", "P"))


def _said(count: float | None, units: Sequence[str]) -> str:
    if count is None:
        return "-"
    for unit in units[:-1]:
        if count < 1000:
            return f"{count:.0f} {unit}".strip() if unit == units[0] or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} {units[-1]}"
