"""Follow a growing file of JSON lines: each read returns the lines that were added; a rewritten file is read again."""

import json
import os
from pathlib import Path
from typing import NamedTuple

from ..evaluation.selection import Line


class Update(NamedTuple):
    """The result of reading a file."""

    restarted: bool  # the file is a new one, or shorter: discard what was read before
    lines: list[Line]
    malformed: bool  # a complete line is not a JSON object


class Tail:
    """A reader of the lines added to a file since the last read; a last line without newline is read later."""

    def __init__(self, path: Path) -> None:
        self.path, self.offset = path, 0
        self.mark = (0, 0, 0)  # inode, size, modification time

    def read_new(self) -> Update:
        """Return the lines that were added; a file with an unchanged mark is not opened."""
        try:
            stat = os.stat(self.path)
            mark = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if mark == self.mark:
                return Update(False, [], False)
            restarted = mark[0] != self.mark[0] or mark[1] < self.offset
            with open(self.path, "rb") as file:
                file.seek(0 if restarted else self.offset)
                added = file.read()
        except OSError:  # missing, or not readable
            removed, self.offset, self.mark = self.offset > 0, 0, (0, 0, 0)
            return Update(removed, [], False)
        complete = added[: added.rfind(b"\n") + 1]
        self.offset, self.mark = (0 if restarted else self.offset) + len(complete), mark
        lines = [_parse(raw) for raw in complete.splitlines()]
        return Update(restarted, [line for line in lines if line is not None], None in lines)


def _parse(raw: bytes) -> Line | None:
    try:
        line = json.loads(raw)
    except ValueError:
        return None
    return line if isinstance(line, dict) else None
