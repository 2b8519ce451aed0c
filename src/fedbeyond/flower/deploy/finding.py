"""The result of a check before a run."""

from typing import NamedTuple


class Finding(NamedTuple):
    """The result of one check."""

    ok: bool
    topic: str
    text: str
