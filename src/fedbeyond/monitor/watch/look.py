"""What can be seen of runs from outside: their files, read as they grow, and their locks."""

import fcntl
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import StatisticsError
from typing import Any, NamedTuple

from ... import __version__
from ...errors import FedbeyondError
from ...evaluation.rules import unseen
from ...evaluation.selection import Line
from ...experiment.bench import tell
from ...experiment.results import FAILURE, PLAN, RESULTS, TIMES
from ...spec import unseen_domains
from .remaining import about, seconds_left
from .tail import Tail

STATES = ("running", "failed", "stopped", "to go", "done")
LATEST = 50  # replies set aside that are told
QUIET = 60  # seconds without a lock or a line after which nobody is at work
Key = tuple[str, str, int]


class Seen(NamedTuple):
    """A round in short."""

    unseen: dict[str, float]  # by domain; empty if the round was not judged
    aside: list[dict[str, Any]]
    told: str


class Run:
    """One run's folder, read as it grows."""

    def __init__(self, folder: Path, config: dict[str, Any], mark: float) -> None:
        self.folder, self.mark, self.rounds = folder, mark, int(config["train"]["rounds"])
        self.key: Key = (str(config["method"]), str(config["target"]), int(config["seed"]))
        self.results, self.times = Tail(folder / RESULTS), Tail(folder / TIMES)
        self.seen: dict[int, Seen] = {}
        self.seconds: dict[int, float] = {}
        self.fault = ""

    def read(self) -> None:
        """Take in what was added."""
        news = self.results.news()
        if news.anew:
            self.seen, self.fault = {}, ""
        torn = news.torn
        for line in news.lines:
            try:
                self.seen[int(line["round"])] = short(line)
            except (
                KeyError,
                TypeError,
                ValueError,
                AttributeError,
                ZeroDivisionError,
                StatisticsError,
                FedbeyondError,
            ):
                torn = True
        if torn:
            self.fault = f"{RESULTS} holds a line that is no result; delete {self.folder} to begin again"
        clock = self.times.news()
        if clock.anew:
            self.seconds = {}
        for line in clock.lines:
            if isinstance(line.get("round"), int) and isinstance(line.get("seconds"), int | float):
                self.seconds[line["round"]] = line["seconds"]

    def state(self) -> tuple[str, str]:
        """One of `STATES`, and why if it broke down."""
        if (self.folder / "done").exists() and len(self.seen) >= self.rounds:
            return "done", ""
        if playing(self.folder):
            return "running", ""
        failure = note(self.folder / FAILURE)
        if failure or self.fault:
            return "failed", str(failure.get("error", self.fault))
        return "stopped", ""


def short(line: Line) -> Seen:
    """What the page needs of a line."""
    named = unseen_domains(line["target"]) if "scores" in line else ()
    domains = {name: round(unseen(line, name), 4) for name in named}
    aside = [{"site": str(entry["site"]), "reason": str(entry["reason"])} for entry in line["aside"]]
    return Seen(domains, aside, tell(line))


class Look:
    """A folder of runs, or a single run's, and all that is known of it by now."""

    def __init__(self, root: Path) -> None:
        self.root, self.runs = root, dict[Path, Run]()
        self.turn = threading.Lock()  # browsers may ask at once

    def state(self) -> dict[str, Any]:
        """Everything that the page shows."""
        with self.turn:
            self.find()
            for run in self.runs.values():
                run.read()
            return self.describe()

    def find(self) -> None:
        """Runs that have come, or begun again, and none that were deleted."""
        kept, self.runs = self.runs, {}
        for folder in (self.root, *sorted(self.root.glob("*/*/seed-*"))):  # as experiment.place puts them
            mark = changed(folder / "config.json")  # written whenever a process takes the run up
            if folder in kept and kept[folder].mark == mark:
                self.runs[folder] = kept[folder]
            elif mark and (config := note(folder / "config.json")):
                with suppress(KeyError, TypeError, ValueError):  # some other program's config.json
                    self.runs[folder] = Run(folder, config, mark)

    def describe(self) -> dict[str, Any]:
        """Counts, time left, and every run that is planned or found."""
        plan = note(self.root / PLAN)
        here = {run.key: run for run in self.runs.values()}
        grid, runs = planned(plan), []
        for key, rounds in (grid | {key: run.rounds for key, run in here.items()}).items():
            found = {"method": key[0], "target": key[1], "seed": key[2], "rounds": rounds, **told(here.get(key))}
            if found["state"] == "stopped" and key in grid:
                found["state"] = "to go"  # the bench goes on with it in its turn
            runs.append(found)
        counts = Counter(run["state"] for run in runs)
        heard = max((run.results.mark[2] for run in here.values()), default=0) / 1e9
        age = max(time.time() - heard, 0) if heard else None
        over = bool(runs) and not counts["running"] and not counts["to go"] and not counts["stopped"]
        awake = counts["running"] > 0 or (age is not None and age < QUIET)
        workers = max(counts["running"], min(number(plan.get("jobs")), counts["running"] + counts["to go"]), 1)
        seconds = {key: list(run.seconds.values()) for key, run in here.items()}
        left = seconds_left(runs, seconds, workers) if awake and not over else None
        aside = [entry for run in here.values() for entry in set_aside(run)]
        return {
            "name": str(self.root),
            "version": __version__,
            "runs": sorted(runs, key=lambda run: STATES.index(run["state"])),
            "methods": list(dict.fromkeys(run["method"] for run in runs)),
            "counts": {state: counts[state] for state in STATES},
            "rounds": {
                "played": sum(run["played"] for run in runs),
                "total": sum(run["played" if run["state"] == "failed" else "rounds"] for run in runs),
            },
            "left": None if left is None else about(left),
            "awake": awake,
            "age": None if age is None else round(age),
            "over": over,
            "report": over and changed(report(self.root)) >= max(heard, 1),  # of these runs, not of earlier ones
            "aside": {"count": len(aside), "latest": aside[-LATEST:]},
            "elsewhere": sorted(str(path.parent) for path in self.root.glob(f"*/{PLAN}")) if not runs else [],
        }


def report(root: Path) -> Path:
    """The page that a bench ends with."""
    return root / "report.html"


def changed(path: Path) -> float:
    """When a file was last changed; 0 if there is none."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0


def told(run: Run | None) -> dict[str, Any]:
    """How far a run has come."""
    if run is None:
        return {"state": "to go", "why": "", "played": 0, "last": "", "curves": {}}
    state, why = run.state()
    played = [run.seen[number] for number in sorted(run.seen)]
    names = {name for seen in played for name in seen.unseen}
    return {
        "state": state,
        "why": why,
        "played": min(len(played), run.rounds),
        "last": played[-1].told if played else "",
        "curves": {name: [seen.unseen.get(name) for seen in played] for name in sorted(names)},
    }


def set_aside(run: Run) -> Iterator[dict[str, Any]]:
    """Replies that the gate did not let through."""
    method, target, seed = run.key
    for number, seen in sorted(run.seen.items()):
        for entry in seen.aside:
            yield {"method": method, "target": target, "seed": seed, "round": number + 1, **entry}


def planned(plan: dict[str, Any]) -> dict[Key, int]:
    """The runs of a grid and their rounds."""
    found: dict[Key, int] = {}
    for cell in plan.get("runs", []):
        try:
            found[str(cell["method"]), str(cell["target"]), int(cell["seed"])] = int(cell["rounds"])
        except (KeyError, TypeError, ValueError):
            continue
    return found


def playing(folder: Path) -> bool:
    """Whether a process holds the run's lock; ours is held for an instant, which a run that begins outwaits."""
    try:
        with open(folder / "lock", "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def note(path: Path) -> dict[str, Any]:
    """A small JSON file; nothing where there is none, or no such thing."""
    try:
        if os.stat(path).st_size > 10_000_000:
            return {}
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def number(value: Any) -> int:
    """A count, or none."""
    return value if isinstance(value, int) else 0
