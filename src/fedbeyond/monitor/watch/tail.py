"""A file of JSON lines that grows: each look reads what was added, and all of it only after it was rewritten."""

import json
import os
from pathlib import Path
from typing import NamedTuple

from ...evaluation.selection import Line


class News(NamedTuple):
    """What a look at a file found."""

    anew: bool  # the file is another one, or shorter: forget what was read before
    lines: list[Line]
    torn: bool  # a whole line is not a JSON object


class Tail:
    """The lines of a file since they were last asked for; a last line without its end is not one yet."""

    def __init__(self, path: Path) -> None:
        self.path, self.offset = path, 0
        self.mark = (0, 0, 0)  # inode, size, time of change

    def news(self) -> News:
        """What was added; a file whose mark has not changed is not opened."""
        try:
            stat = os.stat(self.path)
            mark = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if mark == self.mark:
                return News(False, [], False)
            anew = mark[0] != self.mark[0] or mark[1] < self.offset
            with open(self.path, "rb") as file:
                file.seek(0 if anew else self.offset)
                added = file.read()
        except OSError:  # not there, or not for us to read
            gone, self.offset, self.mark = self.offset > 0, 0, (0, 0, 0)
            return News(gone, [], False)
        whole = added[: added.rfind(b"\n") + 1]
        self.offset, self.mark = (0 if anew else self.offset) + len(whole), mark
        found = [_line(raw) for raw in whole.splitlines()]
        return News(anew, [line for line in found if line is not None], None in found)


def _line(raw: bytes) -> Line | None:
    try:
        found = json.loads(raw)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
