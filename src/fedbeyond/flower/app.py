"""The two Flower apps and the Flower transport. Flower is imported in this module only.

Flower's Grid and messages are used, not its Strategy: rounds are run as in the simulator.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .deploy.operations import SILENT

os.environ.update(SILENT)  # before Flower is imported, which reads them once

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict
    from flwr.app import Message as FlowerMessage
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError as error:
    raise ConfigError(f"Flower is not installed ({error}); pip install 'fedbeyond[flower]'") from None

import torch

from ..experiment import run_folder, runner
from ..experiment.config import parse
from ..server import Failure
from . import enrolment
from .messages import ASK, ENROL, EVALUATE, MEASURE, Message, failure_message, parse_message
from .node import respond
from .site_config import SiteConfig

TYPES = {  # the types by which Flower routes messages
    ENROL: "query.enrol",
    ASK: "train.ask",
    EVALUATE: "evaluate.models",
    MEASURE: "evaluate.moments",
}
PAUSE = 0.5  # seconds between two polls for replies
TREE, NOTES = "tree", "notes"


def arrays(content: bytes) -> ArrayRecord:
    """Return a packed tree as one array of bytes; one array per leaf would cost Flower one request per leaf."""
    return ArrayRecord({TREE: Array("uint8", (len(content),), "safetensors", content)})


def to_records(message: Message, tree: ArrayRecord | None = None) -> RecordDict:
    """Return a message as Flower's records."""
    return RecordDict({TREE: tree or arrays(message.content), NOTES: ConfigRecord({NOTES: message.text})})


def from_records(content: RecordDict) -> Message:
    """Return the message in Flower's records; `ValueError` if there is none."""
    try:
        return parse_message(str(content.config_records[NOTES][NOTES]), content.array_records[TREE][TREE].data)
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a message of fedbeyond: {error}") from None


class FlowerTransport:
    """A transport over a Flower grid; nodes are known by the names of their sites."""

    def __init__(self, grid: Grid, deadline: float = 3600.0) -> None:
        self.grid, self.deadline = grid, deadline
        self.nodes: dict[str, int] = {}  # by the name of the site
        self.refused: set[int] = set()  # nodes that take no part
        self.hello, self.expected = Message(ENROL, {}), frozenset[str]()

    def enrol(
        self, hello: Message, expected: Sequence[str], patience: float | None = None
    ) -> dict[str, Message | Failure]:
        self.hello, self.expected = hello, frozenset(expected)
        enrolled: dict[str, Message | Failure] = {}
        missing, began = set[str](), time.monotonic()
        while True:
            enrolled |= self._greet()
            if missing != self.expected - enrolled.keys():
                missing = {*self.expected} - enrolled.keys()
                print(f"waiting for {', '.join(sorted(missing)) or 'no other site'}", flush=True)
            if not missing or time.monotonic() > began + (patience or self.deadline):
                return enrolled
            time.sleep(PAUSE)

    def exchange(self, messages: Mapping[str, Message]) -> dict[str, Message | Failure]:
        connected = set(self.grid.get_node_ids())
        if any(self.nodes.get(name) not in connected for name in messages):
            self._greet()  # a site that was restarted may have another node id
            connected = set(self.grid.get_node_ids())
        names = {self.nodes[name]: name for name in messages if self.nodes.get(name) in connected}
        answers: dict[str, Message | Failure] = {name: Failure(name, "is not connected") for name in messages}
        for node, answer in self._exchange({node: messages[name] for node, name in names.items()}):
            answers[names[node]] = Failure(names[node], answer) if isinstance(answer, str) else answer
        return answers

    def _greet(self) -> dict[str, Message | Failure]:
        """Send `hello` to nodes that are not known yet, and return the replies of expected sites."""
        registered = {int(node.node_id): str(node.name) for node in self.grid.get_nodes()}
        for node, owner in registered.items():
            if owner and owner not in self.expected and node not in self.refused:  # it is not sent the configuration
                self._refuse(node, f"the federation has no site {owner!r}")
        unknown = [node for node in registered if node not in self.nodes.values() and node not in self.refused]
        enrolled: dict[str, Message | Failure] = {}
        for node, answer in self._exchange(dict.fromkeys(unknown, self.hello)):
            owner = registered[node]  # the site that the node's key belongs to
            claimed = owner if isinstance(answer, str) else str(answer.notes.get("site", owner))
            if owner and claimed != owner:
                reason = f"it claims to be {claimed!r}, but its key belongs to {owner!r}"
                print(f"node {node} takes no part: {reason}", flush=True)
                enrolled[owner] = Failure(owner, reason)  # it is asked again later, in case it was fixed
            elif self.nodes.get(claimed) in registered:
                self._refuse(node, f"another node is {claimed!r} already")
            elif claimed not in self.expected:
                reason = answer if isinstance(answer, str) else answer.notes.get("reason", "")
                self._refuse(node, f"the federation has no site {claimed!r}{f' ({reason})' if reason else ''}")
            else:
                self.nodes[claimed] = node
                enrolled[claimed] = Failure(claimed, answer) if isinstance(answer, str) else answer
            if all(self.nodes.get(name) in registered for name in self.expected):
                break  # all expected sites are there
        return enrolled

    def _refuse(self, node: int, reason: str) -> None:
        print(f"node {node} takes no part: {reason}", flush=True)
        self.refused.add(node)

    def _exchange(self, messages: Mapping[int, Message]) -> Iterator[tuple[int, Message | str]]:
        """Yield the reply of each node within the deadline, or why there is none, in the order of arrival."""
        contents = {id(message.content): message.content for message in messages.values()}
        trees = {key: arrays(content) for key, content in contents.items()}  # most messages share one body
        pushed = [self._to_flower(node, message, trees[id(message.content)]) for node, message in messages.items()]
        sent = list(self.grid.push_messages(pushed)) if pushed else []
        waiting = {number: node for number, node in zip(sent, messages, strict=True) if number}
        end = time.monotonic() + self.deadline
        while waiting:
            for reply in self.grid.pull_messages(list(waiting)):
                if (node := waiting.pop(reply.metadata.reply_to_message_id, None)) is not None:
                    yield node, _answer(reply)
            if waiting and time.monotonic() > end:
                break
            if waiting:
                time.sleep(PAUSE)
        yield from ((node, f"no reply within {self.deadline:g} s") for node in waiting.values())

    def _to_flower(self, node: int, message: Message, tree: ArrayRecord) -> FlowerMessage:
        group = ":".join(str(message.notes[key]) for key in ("round", "kind") if key in message.notes)
        return FlowerMessage(to_records(message, tree), node, TYPES[message.subject], ttl=self.deadline, group_id=group)


def _answer(message: FlowerMessage) -> Message | str:
    """Return the message that a node replied with, or why there is none."""
    if message.has_error():
        return f"Flower reports: {message.error.reason} (error {message.error.code})"
    try:
        return replace(from_records(message.content), packed=None, received=None)  # its bytes are not needed any more
    except Exception as error:  # whatever one node sends, the others continue
        return f"its reply cannot be read: {type(error).__name__}: {error}"


def client_app(answer: Callable[[Context, Message], Message] | None = None) -> ClientApp:
    """Return the Flower app of a site: it answers every message for the site that the node's config describes."""
    app, respond = ClientApp(), answer or at_site

    def handle(message: FlowerMessage, context: Context) -> FlowerMessage:
        try:
            reply = respond(context, from_records(message.content))
        except Exception as error:
            reply = failure_message(error)
        return FlowerMessage(to_records(reply), reply_to=message)

    for kind in TYPES.values():
        category, action = kind.split(".")
        getattr(app, category)(action)(handle)
    return app


def at_site(context: Context, message: Message) -> Message:
    """Answer a message for the site that a node's config describes."""
    site_config = SiteConfig.parse(context.node_config)
    torch.set_num_threads(site_config.threads)
    return respond(site_config, message)


def server_app() -> ServerApp:
    """Return the Flower app of the server: one run, whose configuration and sites are in Flower's run config."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        given = context.run_config
        torch.set_num_threads(int(given.get("threads", 1)))
        config = parse(json.loads(str(given["config"])), "the submitted run")
        transport = FlowerTransport(grid, float(given.get("deadline", 3600)))
        sites, guests = (tuple(filter(None, str(given.get(key, "")).split(","))) for key in ("sites", "guests"))
        home = run_folder.path(Path(str(given["out"])), config)
        setup = enrolment.prepare(config, transport, sites, guests, home=home)
        for line in runner.run(setup, home):
            print(f"round {line['round'] + 1} of {line['rounds']}: {format_line(line)}", flush=True)

    return app


def format_line(line: Mapping[str, Any]) -> str:
    """Describe the scores and rejected replies of a result line in a few words."""
    scores = line.get("scores", {}).items()
    texts = [f"{n} {s[p]['accuracy']:.1%}" for n, s in scores for p in ("val", "test") if p in s]
    return ", ".join(texts + [f"{entry['site']} rejected: {entry['reason']}" for entry in line["rejected"]])
