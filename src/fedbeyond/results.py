"""Results as JSON lines, one a round: appended while a run goes on, read by reports.

A line holds nothing that differs between two runs of one configuration; times stand in a file of their own.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .checkpoint import storing, write
from .errors import StorageError

Line = dict[str, Any]
RESULTS, TIMES = "results.jsonl", "times.jsonl"


def append(path: Path, line: Line) -> None:
    """Add one line to a file."""
    with storing(path), open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def trim(path: Path, rounds: int) -> None:
    """Keep the lines of the first `rounds` rounds: what came later, or was torn by a crash, is done again."""
    if path.exists():
        kept = [line for line in read(path) if line["round"] < rounds]
        write(path, "".join(json.dumps(line) + "\n" for line in kept).encode())


def read(path: Path) -> Iterator[Line]:
    """The lines of a file; a last line without its end is not one."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from None
    for number, line in enumerate(text.split("\n")[:-1], 1):
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            raise StorageError(f"{path}, line {number} is not JSON; is it a results file of fedbeyond?") from None


def load(paths: Iterable[Path]) -> list[Line]:
    """All lines of result files and of folders of runs."""
    lines: list[Line] = []
    for path in paths:
        files = sorted(path.rglob(RESULTS)) if path.is_dir() else [path]
        if not files:
            raise StorageError(f"{path} holds no {RESULTS}; give a folder that 'fedbeyond run' or 'bench' wrote")
        for file in files:
            lines += read(file)
    return lines
