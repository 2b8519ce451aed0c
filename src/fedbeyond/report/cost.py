"""The cost of a round: bytes up and down, private bytes at a site, floating-point operations, and seconds."""

from collections.abc import Sequence
from statistics import mean, median

from ..evaluation.selection import Line
from .layout import Cells

CAPTION = (
    "Cost of a round: bytes that leave a site, reach it and stay there as private state (mean over sites and rounds), "
    "and seconds (median, with evaluation on every domain, on the computer that ran it); if counted, the model's "
    "parameters, the numbers that a site sends and its floating-point operations (mean over sites, last round)"
)
BY_SITE = "Bytes of a round at each site, mean over its rounds: bytes up by kind, bytes down, private bytes"
KINDS = ("parameters", "statistics", "scalars", "data-derived", "undeclared")


def rows(lines: Sequence[Line], times: Sequence[Line]) -> Cells:
    """Return head and body: means over the sites and rounds of each method; empty columns are left out.

    Results of an older version have no counts, and results without times have no seconds.
    """
    usual = seconds(times, "fedavg")
    body: list[dict[str, str]] = []
    for method in dict.fromkeys(line["method"] for line in lines):
        spent = seconds(times, method)
        method_lines = [line for line in lines if line["method"] == method]
        counted = [line for line in times if line["method"] == method and "flops" in line]
        sent = [kinds for line in method_lines for kinds in bytes_up(line).values()]
        down, private = (
            [count for line in method_lines for count in line.get(key, {}).values()]
            for key in ("bytes_down", "private_bytes")
        )
        row = {
            "method": method,
            "parameters": format_count(_mean([line["parameters"] for line in counted])),
            "numbers sent": format_count(_mean([count for line in counted for count in line["sent"].values()])),
            "bytes up": format_bytes(_mean([sum(kinds.values()) for kinds in sent])),
            "parameter bytes up": format_bytes(_mean([kinds.get("parameters", 0) for kinds in sent])),
            "bytes down": format_bytes(_mean(down)),
            "private bytes": format_bytes(_mean(private)),
            "FLOPs": format_count(_mean([count for line in counted for count in line["flops"].values()])),
            "seconds": f"{spent:.2f}" if spent else "-",
            "times FedAvg": f"{spent / usual:.1f}" if spent and usual else "-",
        }
        body.append(row)
    columns = [column for column in (body[0] if body else ()) if any(row[column] != "-" for row in body)]
    return [columns, *([row[column] for column in columns] for row in body)]


def by_site(lines: Sequence[Line]) -> Cells:
    """Return head and body: bytes at each site for each method, with a column for each kind that leaves a site."""
    by_key: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        for site in line["bytes_up"]:
            by_key.setdefault((line["method"], site), []).append(line)
    kinds = [kind for kind in KINDS if any(kind in sent for line in lines for sent in bytes_up(line).values())]
    body = []
    for (method, site), site_lines in by_key.items():
        sent = [format_bytes(mean(bytes_up(line)[site].get(kind, 0) for line in site_lines)) for kind in kinds]
        others = [
            format_bytes(_mean([line[key][site] for line in site_lines if site in line.get(key, {})]))
            for key in ("bytes_down", "private_bytes")
        ]
        body.append([method, site, *sent, *others])
    return [["method", "site", *kinds, "bytes down", "private bytes"], *body]


def bytes_up(line: Line) -> dict[str, dict[str, int]]:
    """Return the bytes that left each site in a round, by kind."""
    return {
        site: {kind: sum(names.values()) for kind, names in kinds.items()} for site, kinds in line["bytes_up"].items()
    }


def seconds(times: Sequence[Line], method: str) -> float | None:
    """Return the median time of a round, with its evaluation on every domain."""
    values = [line["seconds"] for line in times if line["method"] == method]
    return median(values) if values else None


def _mean(counts: Sequence[int]) -> float | None:
    return mean(counts) if counts else None


def format_bytes(count: float | None) -> str:
    """Format a number of bytes with its unit."""
    return _format(count, ("B", "kB", "MB", "GB"))


def format_count(count: float | None) -> str:
    """Format a large number with a prefix: k, M, G, ..."""
    return _format(count, ("", "k", "M", "G", "T", "P"))


def _format(count: float | None, units: Sequence[str]) -> str:
    if count is None:
        return "-"
    for unit in units[:-1]:
        if count < 1000:
            return f"{count:.0f} {unit}".strip() if unit == units[0] or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} {units[-1]}"
