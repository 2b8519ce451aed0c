"""Messages between a server and its sites: short notes as JSON, and a tree as safetensors.

A transport carries messages without knowing what they contain. Only JSON and tensors are read from a message: nothing
that a machine receives is executed.
"""

import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .. import tree
from ..experiment.checkpoint import pack, unpack
from ..tree import Tree

ENROL, ASK, EVALUATE, MEASURE, REPLY, FAILURE = "enrol", "ask", "evaluate", "measure", "reply", "failure"
WAITING = "waiting"  # the reply of a site whose operator has not approved the run yet
FROZEN = "frozen"  # whether a site has the frozen part of the network; with a body: here it is


@dataclass(frozen=True, eq=False)
class Message:
    """One message, to a site or from it."""

    subject: str  # enrol, ask, evaluate, measure or frozen; of a reply: reply, failure or waiting
    notes: dict[str, Any]
    body: Tree = field(default_factory=dict)
    packed: bytes | None = None  # the body as bytes, if they exist: as received, or shared by several messages
    received: str | None = None  # the text as received
    until: float | None = None  # the time after which nobody waits for a reply, if the transport knows it

    @cached_property
    def text(self) -> str:
        """Everything except the tree, with the order of its leaves, which safetensors does not keep."""
        if self.received is not None:
            return self.received
        return json.dumps({"subject": self.subject, "notes": self.notes, "order": list(tree.flatten(self.body))})

    @cached_property
    def content(self) -> bytes:
        """The tree as bytes."""
        return pack(self.body) if self.packed is None else self.packed


def parse_message(text: str, content: bytes) -> Message:
    """Return the message that was received as this text and content; `ValueError` if it is not one."""
    record, flat = json.loads(text), tree.flatten(unpack(content))
    kinds = [type(record.get(key)) for key in ("subject", "notes", "order")] if isinstance(record, dict) else []
    if kinds != [str, dict, list]:
        raise ValueError("not a message of fedbeyond")
    if sorted(map(str, record["order"])) != sorted(flat):
        raise ValueError("the message names other leaves than its tree has")
    body = tree.unflatten({path: flat[path] for path in record["order"]})
    return Message(record["subject"], record["notes"], body, content, text)
