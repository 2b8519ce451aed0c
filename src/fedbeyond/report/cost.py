"""What methods cost: bytes up and down and kept at a site, and seconds, of a round."""

from collections.abc import Sequence
from statistics import mean, median

from ..results import Line
from .layout import Cells

HEAD = ["method", "up", "of it parameters", "down", "kept", "seconds", "times FedAvg"]


def rows(lines: Sequence[Line], times: Sequence[Line]) -> Cells:
    """Header and body: the mean over the sites of a round, of all rounds of a method."""
    methods = list(dict.fromkeys(line["method"] for line in lines))
    usual = seconds(times, "fedavg")
    body = []
    for method in methods:
        spent = seconds(times, method)
        own = [line for line in lines if line["method"] == method]
        sites = [
            [sum(sum(names.values()) for names in kinds.values()) for kinds in line["left"].values()] for line in own
        ]
        parameters = [[sum(kinds.get("parameters", {}).values()) for kinds in line["left"].values()] for line in own]
        body.append(
            [
                method,
                size(_middle(sites)),
                size(_middle(parameters)),
                size(_middle([list(line.get("down", {}).values()) for line in own])),
                size(_middle([list(line.get("kept", {}).values()) for line in own])),
                f"{spent:.2f}" if spent else "-",
                f"{spent / usual:.1f}" if spent and usual else "-",
            ]
        )
    return [HEAD, *body]


def seconds(times: Sequence[Line], method: str) -> float | None:
    """The median time of a round, with its evaluation on every domain."""
    found = [line["seconds"] for line in times if line["method"] == method]
    return median(found) if found else None


def _middle(rounds: list[list[int]]) -> float | None:
    every = [count for sites in rounds for count in sites]
    return mean(every) if every else None


def size(count: float | None) -> str:
    """Bytes as people say them."""
    if count is None:
        return "-"
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


CAPTION = (
    "A round on average: bytes that leave a site, reach it and stay there (mean over sites and rounds), and seconds "
    "(median, evaluation on every domain included, on the machine that made these results)"
)
