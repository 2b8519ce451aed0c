"""The state of a run as read from its files and its lock, while it runs in another process."""

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import FedbeyondError
from ..evaluation.rules import unseen, unseen_if_known
from ..evaluation.selection import Line, percent, selection_score
from ..spec import unseen_domains
from .results import FAILURE, RESULTS, TIMES
from .tail import Tail

Key = tuple[str, str, int]


class RoundSummary(NamedTuple):
    """The values of a round that are shown while its run is running."""

    unseen: dict[str, float]  # accuracy by domain; empty if the round was not evaluated
    rejected: list[dict[str, Any]]
    scores: str  # empty if the round was not evaluated
    text: str


class Run:
    """The folder of a run, read while it grows."""

    def __init__(self, folder: Path, key: Key, rounds: int, mark: float = 0.0) -> None:
        self.folder, self.key, self.rounds, self.mark = folder, key, rounds, mark
        self.results, self.times = Tail(folder / RESULTS), Tail(folder / TIMES)
        self.summaries: dict[int, RoundSummary] = {}
        self.seconds: dict[int, float] = {}
        self.fault = ""

    def read(self) -> None:
        """Read the lines that were added."""
        update = self.results.read_new()
        if update.restarted:
            self.summaries, self.fault = {}, ""
        malformed = update.malformed
        for line in update.lines:
            try:
                self.summaries[int(line["round"])] = summarise(line)
            except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError, FedbeyondError):
                malformed = True
        if malformed:
            self.fault = f"{RESULTS} has a line that is not a result; delete {self.folder} to start the run again"
        self.read_times()

    def read_times(self) -> None:
        """Read the times that were added."""
        times = self.times.read_new()
        if times.restarted:
            self.seconds = {}
        for line in times.lines:
            if isinstance(line.get("round"), int) and isinstance(line.get("seconds"), int | float):
                self.seconds[line["round"]] = line["seconds"]

    def state(self) -> tuple[str, str]:
        """Return done, running, failed or stopped, and the reason if the run failed."""
        if (self.folder / "done").exists() and len(self.summaries) >= self.rounds:
            return "done", ""
        if is_running(self.folder):
            return "running", ""
        failure = read_json(self.folder / FAILURE)
        if failure or self.fault:
            return "failed", str(failure.get("error", self.fault))
        return "stopped", ""

    def last(self) -> RoundSummary:
        """Return the last finished round; an empty summary before the first."""
        return self.summaries[max(self.summaries)] if self.summaries else RoundSummary({}, [], "", "")

    def scores(self) -> str:
        """Return the scores of the last round that was evaluated; empty before the first."""
        return next(
            (summary.scores for _, summary in sorted(self.summaries.items(), reverse=True) if summary.scores), ""
        )


def summarise(line: Line) -> RoundSummary:
    """Return the values of a line that are shown."""
    targets = unseen_domains(line["target"]) if "scores" in line else ()
    domains = {name: round(unseen(line, name), 4) for name in targets if name in line["scores"]}
    rejected = [{"site": str(entry["site"]), "reason": str(entry["reason"])} for entry in line["rejected"]]
    return RoundSummary(domains, rejected, format_scores(line), format_round(line))


def format_run(method: str, target: object, seed: int) -> str:
    """Name a run in messages."""
    return f"{method}, {target} unseen, seed {seed}"


def format_round(line: Line) -> str:
    """Describe a round in half a line."""
    parts = (f"round {line['round'] + 1}/{line['rounds']}", format_scores(line), format_rejected(line["rejected"]))
    return ", ".join(part for part in parts if part)


def format_scores(line: Line) -> str:
    """Describe the scores of a round; empty if it was not evaluated."""
    if "scores" not in line:
        return ""
    return f"own {percent(selection_score(line))}, unseen {percent(unseen_if_known(line))}"


def format_rejected(rejected: Sequence[Mapping[str, Any]]) -> str:
    """Name the sites whose replies were rejected; empty if there are none."""
    sites = ", ".join(sorted({entry["site"] for entry in rejected}))
    return f"rejected: {sites}" if sites else ""


def changed(path: Path) -> float:
    """Return the modification time of a file; 0 if there is none."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0


def is_running(folder: Path) -> bool:
    """Return whether a process holds the run's lock; the lock taken here is brief, and a starting run waits for it."""
    try:
        with open(folder / "lock", "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(lock, fcntl.LOCK_UN)  # a worker that another thread forks now would keep it
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def read_json(path: Path) -> dict[str, Any]:
    """Read a small JSON object; return an empty one if the file is missing or not valid."""
    try:
        if os.stat(path).st_size > 10_000_000:
            return {}
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
