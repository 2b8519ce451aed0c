"""Result files: JSON lines, one per round, appended while a run is running and read by reports.

A result line holds nothing that differs between two runs of one configuration; times are in a file of their own.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from .._io import storage_errors, write
from ..errors import StorageError
from ..evaluation.selection import Line

RESULTS, TIMES = "results.jsonl", "times.jsonl"
PLAN, FAILURE = "plan.json", "failure.json"  # the runs of a grid, and why a run failed; `watch` reads both


def append(path: Path, line: Line) -> None:
    """Append a line to a file."""
    with storage_errors(path), open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def trim(path: Path, rounds: int, change: Callable[[Line], Line] = lambda line: line) -> list[Line]:
    """Keep only the lines of the first `rounds` rounds, `change` them, and return them; later rounds are run again."""
    if not path.exists():
        return []
    kept = [change(line) for line in read(path) if line.get("round", rounds) < rounds]
    write(path, "".join(json.dumps(line) + "\n" for line in kept).encode())
    return kept


def read(path: Path) -> Iterator[Line]:
    """Read the lines of a file; ignore a last line without a newline."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise StorageError(f"{path} is not text; give a {RESULTS} or a folder of runs") from None
    for number, line in enumerate(text.split("\n")[:-1], 1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            record = None
        if not isinstance(record, dict):
            raise StorageError(f"{path}, line {number} is not JSON; is it a results file of fedbeyond?")
        yield record


def load(paths: Iterable[Path]) -> list[Line]:
    """Load all lines of result files and of folders of runs."""
    lines: list[Line] = []
    for path in paths:
        files = sorted(path.rglob(RESULTS)) if path.is_dir() else [path]
        if not files:
            raise StorageError(f"{path} holds no {RESULTS}; give a folder that 'fedbeyond run' or 'bench' wrote")
        for file in files:
            added = list(read(file))
            if not added and not path.is_dir():
                raise StorageError(f"{file} holds no complete line; give a {RESULTS} or a folder of runs")
            if any(not {"method", "target", "seed", "setting", "rounds", "round"} <= line.keys() for line in added):
                raise StorageError(f"{file} holds lines that are not results; give a {RESULTS} or a folder of runs")
            lines += added
    return lines


def averaged(lines: Iterable[Line]) -> list[Line]:
    """Replace the scores with re-estimated BatchNorm statistics by those with averaged statistics."""
    replaced = []
    for line in lines:
        if "scores_average" in line:
            others = {key: value for key, value in line.items() if key != "scores_average"}
            line = others | {"scores": line["scores_average"], "statistics": "averaged"}
        replaced.append(line)
    return replaced


def times(paths: Iterable[Path]) -> list[Line]:
    """Load the times of rounds where they are known: next to the results of a run, or NAME.times.jsonl for a file."""
    files: list[Path] = []
    for path in paths:
        files += sorted(path.rglob(TIMES)) if path.is_dir() else [path.with_suffix(".times.jsonl")]
    lines = [line for file in files if file.exists() for line in read(file)]
    return [line for line in lines if {"method", "seconds"} <= line.keys()]
