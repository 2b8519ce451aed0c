"""Tables of what was measured, everything as times of the plain loop on the same cell: other machines, other seconds.

python benchmarks/speed/table.py     print them from benchmarks/results/speed.json, and put them into docs/speed.md
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cells import ABOUT, CELLS, PEERS

ROOT = Path(__file__).parent.parent.parent
RESULTS, DOCS = ROOT / "benchmarks" / "results" / "speed.json", ROOT / "docs" / "speed.md"
FROM, TO = "<!-- tables: written by benchmarks/speed/table.py -->\n", "<!-- end of tables -->\n"
TITLES = {"plain": "plain loop", "ours": "fedbeyond", "pfl": "pfl", "flower": "Flower", "nvflare": "NVFlare"}
NEAR = 1e-5
LADDER = {name: cell.clients for name, cell in CELLS.items() if name.startswith("clients-")}


class Line(NamedTuple):
    """A straight line through measured points, and the share of their variance that it explains."""

    intercept: float
    slope: float
    r2: float


def fit(x: list[float], y: list[float]) -> Line:
    """The line with the least squares."""
    slope, intercept = np.polyfit(x, y, 1)
    left, all_ = np.sum((np.array(y) - intercept - slope * np.array(x)) ** 2), np.sum((y - np.mean(y)) ** 2)
    return Line(float(intercept), float(slope), float(1 - left / all_) if all_ else 1.0)


def usual(entry: dict[str, Any]) -> float:
    """The median of a runner's rounds."""
    return float(np.median(entry["rounds"]))


def measured(entry: dict[str, Any] | None) -> bool:
    """Whether a runner finished and came to the weights of the plain loop."""
    return bool(entry and not entry["outcome"] and entry["difference"] <= NEAR)


def rounds(entry: dict[str, Any], plain: dict[str, Any]) -> str:
    """The median round, and the quartiles of all, as times of the plain loop's median."""
    low, middle, high = (np.quantile(entry["rounds"], (0.25, 0.5, 0.75)) / usual(plain)).tolist()
    return f"{number(middle)} ({number(low)} to {number(high)})"


def number(value: float) -> str:
    """Two decimals where they say something."""
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def once(key: str) -> Any:
    """A quantity that a run has once, as times of the plain loop's."""
    return lambda entry, plain: number(entry[key] / plain[key]) if plain[key] else "-"


def grid(results: dict[str, Any], title: str, tell: Any) -> list[str]:
    """One table: a line for each cell, a column for each runner; a dash where there is nothing to tell."""
    head = [title, *(TITLES[peer] for peer in PEERS)]
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for name in [name for name in CELLS if measured(results.get(name, {}).get("plain"))]:
        entries = results[name]
        told = [tell(entries[peer], entries["plain"]) if measured(entries.get(peer)) else "-" for peer in PEERS]
        lines.append(f"| {ABOUT[name]} | {' | '.join(told)} |")
    return lines


def scaling(results: dict[str, Any]) -> list[str]:
    """The cost of clients as a line, and what a second core brings."""
    lines = ["| | cost of a client | intercept, in clients | R² | two cores, times as fast |", f"|{' --- |' * 5}"]
    slopes: dict[str, float] = {}
    for peer in PEERS:
        points = [
            (many, results[name][peer]) for name, many in LADDER.items() if measured(results.get(name, {}).get(peer))
        ]
        told = ["-"] * 3
        if len(points) > 2:
            line = fit([many for many, _ in points], [usual(entry) for _, entry in points])
            slopes[peer] = line.slope
            share = number(line.slope / slopes["plain"]) if "plain" in slopes else "-"
            told = [share, f"{line.intercept / line.slope:.1f}", f"{line.r2:.4f}"]
        one, two = (results.get(name, {}).get(peer) for name in ("cores-1", "cores-2"))
        told.append(number(gain(one, two)) if measured(one) and measured(two) else "-")
        lines.append(f"| {TITLES[peer]} | {' | '.join(told)} |")
    return lines


def gain(one: dict[str, Any], two: dict[str, Any]) -> float:
    """How many times as fast rounds with two cores are: the median over turns, in each of which both were measured."""
    size = CELLS["cores-1"].rounds
    turns = [
        [np.median(entry["rounds"][at : at + size]) for at in range(0, len(entry["rounds"]), size)]
        for entry in (one, two)
    ]
    return float(np.median([alone / shared for alone, shared in zip(*turns, strict=False)]))


def remarks(found: dict[str, Any]) -> list[str]:
    """Who was left out of what, and why."""
    lines = [f"- {TITLES[peer]} was not measured: {reason}" for peer, reason in found["skipped"].items()]
    for name, entries in found["results"].items():
        for peer, entry in entries.items():
            if entry["outcome"]:
                lines.append(f"- {TITLES[peer]}, {name}: {entry['outcome']}")
            elif entry["difference"] > NEAR:
                lines.append(f"- {TITLES[peer]}, {name}: its weights differ by {entry['difference']:.1e}")
    return lines


def markdown(found: dict[str, Any]) -> str:
    """All tables."""
    results = found["results"]
    near = [entry["difference"] for entries in results.values() for entry in entries.values() if measured(entry)]
    versions = ", ".join(f"{TITLES[peer]} {told}" for peer, told in found["versions"].items() if peer != "plain")
    parts = [
        [f"{versions}; torch {found['versions'].get('plain', '?')}, {found['cores']} cores."],
        grid(results, "a round, median (quartiles)", rounds),
        grid(results, "start-up", once("start")),
        grid(results, "most memory (PSS)", once("memory")),
        scaling(results),
        [f"Where there is a figure, final weights agree with the plain loop's to {max(near):.1e}." if near else ""],
        remarks(found),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def put(text: str, tables: str) -> str:
    """A page with these tables in the place of those it had."""
    before, _, rest = text.partition(FROM)
    return f"{before}{FROM}\n{tables}\n{TO}{rest.partition(TO)[2]}"


def main() -> None:
    tables = markdown(json.loads(RESULTS.read_text()))
    DOCS.write_text(put(DOCS.read_text(), tables))
    print(tables)


if __name__ == "__main__":
    main()
