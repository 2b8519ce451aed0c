"""The state of runs as read from their files and locks, while they run in other processes."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ... import __version__
from ...experiment.remaining import about, seconds_left
from ...experiment.results import PLAN
from ...experiment.run_state import Key, Run, changed, read_json

STATES = ("running", "failed", "stopped", "pending", "done")
REPORT = "report.html"  # the page that a bench writes at its end
LATEST = 50  # rejected replies that the page shows
QUIET = 60  # seconds without a lock or a new line after which no process is running


class Watcher:
    """A folder of runs, or of a single run, and what was read from it so far."""

    def __init__(self, root: Path) -> None:
        self.root, self.runs = root, dict[Path, Run]()
        self.lock = threading.Lock()  # several browsers may request the state

    def state(self) -> dict[str, Any]:
        """Return everything that the page shows."""
        with self.lock:
            self.find()
            for run in self.runs.values():
                run.read()
            return self.describe()

    def find(self) -> None:
        """Update the runs: add new and restarted runs, remove deleted ones."""
        known, self.runs = self.runs, {}
        for folder in (self.root, *sorted(self.root.glob("*/*/seed-*"))):  # where run and bench put them
            mark = changed(folder / "config.json")  # written whenever a process starts or resumes the run
            if folder in known and known[folder].mark == mark:
                self.runs[folder] = known[folder]
            elif mark and (config := read_json(folder / "config.json")):
                with suppress(KeyError, TypeError, ValueError):  # config.json of another program
                    key = str(config["method"]), str(config["target"]), int(config["seed"])
                    self.runs[folder] = Run(folder, key, int(config["train"]["rounds"]), mark)

    def describe(self) -> dict[str, Any]:
        """Return counts, the remaining time, and every run that is planned or has a folder."""
        plan = read_json(self.root / PLAN)
        started = {run.key: run for run in self.runs.values()}
        grid, runs = planned(plan), []
        for key, rounds in (grid | {key: run.rounds for key, run in started.items()}).items():
            progress = describe_run(started.get(key))
            if progress["state"] == "done" and grid.get(key, 0) > rounds:
                rounds, progress = grid[key], progress | {"state": "pending"}  # the bench continues it later
            run = {**named(key), "rounds": rounds, **progress}
            if run["state"] == "stopped" and key in grid:
                run["state"] = "pending"  # the bench resumes it later
            runs.append(run)
        counts = Counter(run["state"] for run in runs)
        last_change = max((each.results.mark[2] for each in started.values()), default=0) / 1e9
        age = max(time.time() - last_change, 0) if last_change else None
        finished = bool(runs) and not counts["running"] and not counts["pending"] and not counts["stopped"]
        active = counts["running"] > 0 or (age is not None and age < QUIET)
        seconds = {key: list(run.seconds.values()) for key, run in started.items()}
        remaining = seconds_left(runs, seconds, number(plan.get("jobs"))) if active and not finished else None
        rejected = [entry for each in started.values() for entry in rejected_replies(each)]
        return {
            "name": str(self.root),
            "version": __version__,
            "runs": sorted(runs, key=lambda run: STATES.index(run["state"])),
            "methods": list(dict.fromkeys(run["method"] for run in runs)),
            "counts": {state: counts[state] for state in STATES},
            "rounds": {
                "done": sum(run["rounds_done"] for run in runs),
                "total": sum(run["rounds_done" if run["state"] == "failed" else "rounds"] for run in runs),
            },
            "time_left": None if remaining is None else about(remaining),
            "active": active,
            "age": None if age is None else round(age),
            "finished": finished,
            "report": finished and changed(self.root / REPORT) >= max(last_change, 1),  # not that of earlier runs
            "rejected": {"count": len(rejected), "latest": rejected[-LATEST:]},
            "subfolders": sorted(str(path.parent) for path in self.root.glob(f"*/{PLAN}")) if not runs else [],
        }


def describe_run(run: Run | None) -> dict[str, Any]:
    """Return the state and progress of a run."""
    if run is None:
        return {"state": "pending", "reason": "", "rounds_done": 0, "last": "", "curves": {}}
    state, reason = run.state()
    rounds = [run.summaries[number] for number in sorted(run.summaries)]
    names = {name for summary in rounds for name in summary.unseen}
    return {
        "state": state,
        "reason": reason,
        "rounds_done": min(len(rounds), run.rounds),
        "last": rounds[-1].text if rounds else "",
        "curves": {name: [summary.unseen.get(name) for summary in rounds] for name in sorted(names)},
    }


def rejected_replies(run: Run) -> Iterator[dict[str, Any]]:
    """Yield the replies that the gate rejected."""
    for number, summary in sorted(run.summaries.items()):
        for entry in summary.rejected:
            yield {**named(run.key), "round": number + 1, **entry}


def named(key: Key) -> dict[str, Any]:
    """Return what identifies a run, by name."""
    return dict(zip(("method", "target", "seed"), key, strict=True))


def planned(plan: dict[str, Any]) -> dict[Key, int]:
    """Return the runs of a grid and their numbers of rounds."""
    runs: dict[Key, int] = {}
    for cell in plan.get("runs", []):
        with suppress(KeyError, TypeError, ValueError):
            runs[str(cell["method"]), str(cell["target"]), int(cell["seed"])] = int(cell["rounds"])
    return runs


def number(value: Any) -> int:
    """Return an integer, or 0 if the value is not one."""
    return value if isinstance(value, int) else 0
