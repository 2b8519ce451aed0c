"""Results as JSON lines, one a round: appended while a run goes on, read by reports.

A line holds nothing that differs between two runs of one configuration; times stand in a file of their own.
"""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from .._io import storing, write
from ..errors import StorageError
from ..evaluation.selection import Line

RESULTS, TIMES = "results.jsonl", "times.jsonl"
PLAN, FAILURE = "plan.json", "failure.json"  # what a grid consists of, and why a run broke down: for who watches


def append(path: Path, line: Line) -> None:
    """Add one line to a file."""
    with storing(path), open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def trim(path: Path, rounds: int) -> None:
    """Keep the lines of the first `rounds` rounds: what came later, or was torn by a crash, is done again."""
    if path.exists():
        kept = [line for line in read(path) if line.get("round", rounds) < rounds]
        write(path, "".join(json.dumps(line) + "\n" for line in kept).encode())


def read(path: Path) -> Iterator[Line]:
    """The lines of a file; a last line without its end is not one."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise StorageError(f"{path} is not text; give a {RESULTS} or a folder of runs") from None
    for number, line in enumerate(text.split("\n")[:-1], 1):
        try:
            found = json.loads(line)
        except json.JSONDecodeError:
            found = None
        if not isinstance(found, dict):
            raise StorageError(f"{path}, line {number} is not JSON; is it a results file of fedbeyond?")
        yield found


def load(paths: Iterable[Path]) -> list[Line]:
    """All lines of result files and of folders of runs."""
    lines: list[Line] = []
    for path in paths:
        files = sorted(path.rglob(RESULTS)) if path.is_dir() else [path]
        if not files:
            raise StorageError(f"{path} holds no {RESULTS}; give a folder that 'fedbeyond run' or 'bench' wrote")
        for file in files:
            found = list(read(file))
            if any(not {"method", "target", "seed", "setting", "rounds", "round"} <= line.keys() for line in found):
                raise StorageError(f"{file} holds other lines than results; give a {RESULTS} or a folder of runs")
            lines += found
    return lines


def averaged(lines: Iterable[Line]) -> list[Line]:
    """Put the scores with averaged BatchNorm statistics in the place of those with re-estimated ones."""
    found = []
    for line in lines:
        if "scores_average" in line:
            others = {key: value for key, value in line.items() if key != "scores_average"}
            line = others | {"scores": line["scores_average"], "statistics": "averaged"}
        found.append(line)
    return found


def times(paths: Iterable[Path]) -> list[Line]:
    """How long rounds took, where that is known: beside the results in folders of runs, NAME.times.jsonl for a file."""
    files: list[Path] = []
    for path in paths:
        files += sorted(path.rglob(TIMES)) if path.is_dir() else [path.with_suffix(".times.jsonl")]
    found = [line for file in files if file.exists() for line in read(file)]
    return [line for line in found if {"method", "seconds"} <= line.keys()]
