"""How fast a round is: a plain PyTorch loop, fedbeyond, Apple's pfl, Flower's and NVFlare's simulators, on equal terms.

    python benchmarks/speed/run.py                             all of it: some 35 round_log on two idle cores
    python benchmarks/speed/run.py --only feddg --peer pfl     one cell; the plain loop runs beside whoever it is
    python benchmarks/speed/run.py --quick                     tiny rounds, into a folder of its own: does it all work?

Everyone gets the same network, first weights, images, order of batches, steps and learning rate, one thread for each
client and the same cores; evaluation and checkpoints are off. One round to warm up, then at least five that count. Each
peer comes from PyPI into an environment of its own under .venv-speed/, with the same torch. What is finished is on disk
at once; the final weights of everyone must be those of the plain loop.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
from dataclasses import dataclass, field
from itertools import groupby, product
from pathlib import Path
from typing import Any

import measure
import table
import task
from cells import CELLS
from peers import PEERS, ROOT, Missing, command, environment, surroundings, version


@dataclass
class Suite:
    """What was found so far, and where it goes."""

    out: Path
    home: Path
    pythons: dict[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        empty: dict[str, Any] = {"versions": {}, "skipped": {}, "results": {}}
        self.found = json.loads(self.out.read_text()) if self.out.exists() else empty
        self.found["cores"] = len(os.sched_getaffinity(0))

    def keep(self) -> None:
        """Write down what was found, whole or not at all."""
        self.out.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.out.with_suffix(".new")
        fresh.write_text(json.dumps(self.found, indent=1) + "\n")
        fresh.replace(self.out)

    def ready(self, names: list[str]) -> list[str]:
        """Those runners that can be had; of the others it is noted why not."""
        for name in names:
            try:
                self.pythons[name] = environment(name, self.home)
                self.found["versions"][name] = version(name, self.pythons[name])
                self.found["skipped"].pop(name, None)
            except Missing as reason:
                print(f"{name} is skipped: {reason}", flush=True)
                self.found["skipped"][name] = str(reason)
        self.keep()
        return [name for name in names if name in self.pythons]

    def measure(self, cells: list[task.Cell], names: list[str]) -> None:
        """Cells that are compared, with all of these runners: one after the other, turn by turn."""
        with tempfile.TemporaryDirectory() as place:
            cells = [cell._replace(root=f"{place}/images") if cell.files else cell for cell in cells]
            for cell in cells:
                if cell.files:
                    task.draw(cell, Path(cell.root))
            for turn in range(cells[0].turns):
                for name, cell in product(names, cells):
                    entries = self.found["results"].setdefault(cell.name, {})
                    found = self.hopeless(name, cell) or self.one(name, cell, Path(place) / cell.name / str(turn))
                    entries[name] = joined(entries[name], found) if turn else found
                    self.keep()
                    print(f"{cell.name:12} {name:8} {told(entries[name], entries['plain'])}", flush=True)

    def one(self, name: str, cell: task.Cell, place: Path) -> dict[str, Any]:
        """One runner on one cell."""
        folder = place / name
        folder.mkdir(parents=True)
        path = folder / "cell.json"
        path.write_text(json.dumps(cell._asdict()))
        started = command(name, self.pythons[name], path, cell.cores)
        seen = measure.run(started, surroundings(str(folder)), folder, cell.cores, cell.limit)
        entry = measure.times(folder, seen.pop("began")) | seen
        if not entry["outcome"]:
            entry["difference"] = measure.difference(folder, place / "plain")
        return entry

    def hopeless(self, name: str, cell: task.Cell) -> dict[str, Any] | None:
        """What there is to say of a runner that did not manage fewer clients."""
        for other, many in table.LADDER.items():
            earlier = self.found["results"].get(other, {}).get(name, {}) if cell.name in table.LADDER else {}
            if many < cell.clients and earlier.get("outcome"):
                return {"rounds": [], "start": None, "memory": 0, "outcome": f"not tried: see {other}"}
        return None


def joined(entry: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """What two turns of a runner found."""
    if entry["outcome"] or other["outcome"]:
        return entry if entry["outcome"] else other
    most = {key: max(entry[key], other[key]) for key in ("memory", "difference")}
    return entry | most | {"rounds": entry["rounds"] + other["rounds"], "start": min(entry["start"], other["start"])}


def told(entry: dict[str, Any], plain: dict[str, Any]) -> str:
    """A line of progress."""
    if entry["outcome"]:
        return entry["outcome"]
    ratio = table.usual(entry) / table.usual(plain) if plain["rounds"] else float("nan")
    return (
        f"{table.usual(entry):8.4f} s a round, {ratio:8.2f} of plain; start {entry['start']:5.1f} s, "
        f"{entry['memory'] / 2**20:6.0f} MiB; weights differ by {entry['difference']:.1e}"
    )


def quick(cell: task.Cell) -> task.Cell:
    """The same with next to nothing to do."""
    fewer = min(cell.clients, 4)
    return cell._replace(
        clients=fewer, asked=min(cell.asked, 2), steps=min(cell.steps, 2), batch=min(cell.batch, 4), rounds=2, turns=1
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CELLS, action="append", metavar="CELL", help=f"one of {', '.join(CELLS)}")
    parser.add_argument("--peer", choices=PEERS, action="append", metavar="PEER", help=f"one of {', '.join(PEERS)}")
    parser.add_argument("--quick", action="store_true", help="tiny rounds, to see that it all works")
    parser.add_argument("--out", type=Path, help="the file of results")
    parser.add_argument("--home", type=Path, default=ROOT / ".venv-speed", help="where the peers' environments are")
    given = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # also in the background, and with an end to all that was started
        signal.signal(number, lambda *_: sys.exit("stopped; what was finished is kept"))
    usual = Path(tempfile.gettempdir()) / "speed-quick.json" if given.quick else table.RESULTS
    suite = Suite(given.out or usual, given.home)
    names = suite.ready(list(dict.fromkeys(["plain", *(given.peer or PEERS)])))
    wanted = [cell for name, cell in CELLS.items() if name in (given.only or CELLS)]
    for _, cells in groupby(wanted, lambda cell: cell.group or cell.name):
        suite.measure([quick(cell) if given.quick else cell for cell in cells], names)
    print(f"\n{table.markdown(suite.found)}\nwritten: {suite.out}")


if __name__ == "__main__":
    sys.exit(main())
