"""What server and sites write to each other when they are on different machines: short notes, and a tree.

An engine that carries letters needs to know nothing of what they say. Notes are JSON, trees are safetensors: nothing
that a machine receives is ever run.
"""

import json
from typing import Any, NamedTuple

from .. import tree
from ..experiment.checkpoint import pack, unpack
from ..tree import Tree

ENROL, ASK, EVALUATE, MEASURE, REPLY, FAILURE = "enrol", "ask", "evaluate", "measure", "reply", "failure"


class Letter(NamedTuple):
    """One message, to a site or from it."""

    subject: str  # enrol, ask, evaluate or measure; of an answer: reply or failure
    notes: dict[str, Any]
    body: Tree = {}  # noqa: RUF012 (never written to)

    @property
    def text(self) -> str:
        """All but the tree, whose order safetensors does not keep."""
        return json.dumps({"subject": self.subject, "notes": self.notes, "order": list(tree.flatten(self.body))})

    @property
    def content(self) -> bytes:
        """The tree."""
        return pack(self.body)


def opened(text: str, content: bytes) -> Letter:
    """The letter with this text and content; ValueError if it is none."""
    told, flat = json.loads(text), tree.flatten(unpack(content))
    if not isinstance(told, dict) or [type(told.get(key)) for key in ("subject", "notes", "order")] != [
        str,
        dict,
        list,
    ]:
        raise ValueError("no letter of fedbeyond")
    if sorted(map(str, told["order"])) != sorted(flat):
        raise ValueError("a letter that names other leaves than its tree has")
    return Letter(told["subject"], told["notes"], tree.unflatten({path: flat[path] for path in told["order"]}))


def failure(error: Exception, **notes: str) -> Letter:
    """What a site answers if it cannot."""
    return Letter(FAILURE, {"reason": f"{type(error).__name__}: {error}"} | notes)
