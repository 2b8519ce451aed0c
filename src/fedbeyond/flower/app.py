"""The two Flower apps and the Flower transport. Flower is imported here, in `run_status.py` and in `superexec.py`.

Flower's Grid and messages are used, not its Strategy: rounds are run as in the simulator.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .._plugins import traceback_wanted
from ..errors import ConfigError, FedbeyondError, printable
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
from .failures import FLOWER_ERRORS, failure_message
from .messages import ASK, ENROL, EVALUATE, FROZEN, MEASURE, REPLY, WAITING, Message, parse_message
from .node import respond
from .remote import MAX_NOTES, Check, reply_or_failure
from .run_status import stop_check
from .site_config import SiteConfig

TYPES = {  # the types by which Flower routes messages
    ENROL: "query.enrol",
    ASK: "train.ask",
    EVALUATE: "evaluate.models",
    MEASURE: "evaluate.moments",
    FROZEN: "query.frozen",
}
PAUSE = 0.5  # seconds between two polls for replies
RETURNING = 30.0  # seconds for which a node that missed its heartbeat may come back with its reply
ASK_AGAIN = 30.0  # seconds until a site is asked again whose operator has not approved the run
TREE, NOTES = "tree", "notes"


def arrays(content: bytes) -> ArrayRecord:
    """Return a packed tree as one array of bytes; one array per leaf would cost Flower one request per leaf."""
    return ArrayRecord({TREE: Array("uint8", (len(content),), "safetensors", content)})


def to_records(message: Message, tree: ArrayRecord | None = None) -> RecordDict:
    """Return a message as Flower's records."""
    return RecordDict({TREE: tree or arrays(message.content), NOTES: ConfigRecord({NOTES: message.text})})


def from_records(content: RecordDict, limit: int | None = None) -> Message:
    """Return the message in Flower's records; `ValueError` if there is none, or one of more than `limit` bytes."""
    try:
        text, packed = str(content.config_records[NOTES][NOTES]), content.array_records[TREE][TREE].data
        if limit is not None and len(text) + len(packed) > limit:  # before anything is decoded
            raise ValueError(f"it has {len(text) + len(packed)} bytes, and what was asked for has at most {limit}")
        return parse_message(text, packed)
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a message of fedbeyond: {error}") from None


class FlowerTransport:
    """A transport over a Flower grid; nodes are known by the names of their sites."""

    def __init__(self, grid: Grid, deadline: float = 3600.0) -> None:
        self.grid, self.deadline = grid, deadline
        self.nodes: dict[str, int] = {}  # by the name of the site
        self.refused: set[int] = set()  # nodes that take no part
        self.barred: dict[str, Failure] = {}  # sites whose reply to `hello` was refused
        self.waiting: dict[str, Failure] = {}  # sites whose operators have not approved the run yet
        self.asked: dict[int, float] = {}  # when nodes of these were asked last
        self.hello, self.expected = Message(ENROL, {}), frozenset[str]()
        self.check: Check = lambda name, answer: answer

    def enrol(
        self, hello: Message, expected: Sequence[str], patience: float | None = None, check: Check | None = None
    ) -> dict[str, Message | Failure]:
        self.hello, self.expected, self.check = hello, frozenset(expected), check or self.check
        enrolled: dict[str, Message | Failure] = {}
        missing, began = set[str](), time.monotonic()
        while True:
            enrolled |= self._greet()
            if missing != self.expected - enrolled.keys():
                missing = {*self.expected} - enrolled.keys()
                print(f"waiting for {', '.join(sorted(missing)) or 'no other site'}", flush=True)
            if not missing or time.monotonic() > began + (patience or self.deadline):
                return {name: self.waiting[name] for name in missing & self.waiting.keys()} | enrolled
            time.sleep(PAUSE)

    def exchange(self, messages: Mapping[str, Message], limit: int = MAX_NOTES) -> dict[str, Message | Failure]:
        connected = set(self.grid.get_node_ids())
        if any(self.nodes.get(name) not in connected for name in messages):
            self._greet()  # a site that was restarted may have another node id
            connected = set(self.grid.get_node_ids())
        present = [name for name in messages if self.nodes.get(name) in connected and name not in self.barred]
        names = {self.nodes[name]: name for name in present}
        answers: dict[str, Message | Failure] = {
            name: self.barred.get(name) or self.waiting.get(name) or Failure(name, "is not connected")
            for name in messages
        }
        for node, answer in self._exchange({node: messages[name] for node, name in names.items()}, limit):
            answers[names[node]] = Failure(names[node], answer) if isinstance(answer, str) else answer
        return answers

    def _greet(self) -> dict[str, Message | Failure]:
        """Send `hello` to nodes that are not known yet, and return the replies of expected sites."""
        registered = {int(node.node_id): str(node.name) for node in self.grid.get_nodes()}
        for node, owner in registered.items():
            if owner and owner not in self.expected and node not in self.refused:  # it is not sent the configuration
                self._refuse(node, f"the federation has no site {owner!r}")
        unknown = [node for node in registered if node not in self.nodes.values() and node not in self.refused]
        unknown = [node for node in unknown if time.monotonic() >= self.asked.get(node, -ASK_AGAIN) + ASK_AGAIN]
        enrolled: dict[str, Message | Failure] = {}
        for node, answer in self._exchange(dict.fromkeys(unknown, self.hello)):
            owner = registered[node]  # the site that the node's key belongs to
            notes = {} if isinstance(answer, str) else answer.notes
            claimed = printable(notes["site"]) if isinstance(notes.get("site"), str) else owner
            if owner and claimed != owner:
                reason = f"it claims to be {claimed!r}, but its key belongs to {owner!r}"
                print(f"node {node} takes no part: {reason}", flush=True)
                enrolled[owner] = Failure(owner, reason)  # it is asked again later, in case it was fixed
            elif self.nodes.get(claimed) in registered:
                self._refuse(node, f"another node is {claimed!r} already")
            elif claimed not in self.expected:
                said = answer if isinstance(answer, str) else notes.get("reason")
                known = f" ({printable(said)})" if isinstance(said, str) else ""
                self._refuse(node, f"the federation has no site {claimed!r}{known}")
            elif not isinstance(answer, str) and answer.subject == WAITING:
                self._wait(claimed, node, answer)
            else:
                self.nodes[claimed] = node
                self.barred.pop(claimed, None)
                self.waiting.pop(claimed, None)
                enrolled[claimed] = found = self._checked(claimed, answer)
                if isinstance(found, Failure) and not isinstance(answer, str) and answer.subject == REPLY:
                    self.barred[claimed] = found
            if all(self.nodes.get(name) in registered for name in self.expected):
                break  # all expected sites are there
        return enrolled

    def _checked(self, name: str, answer: Message | str) -> Message | Failure:
        """Return what a site says of itself if it can be believed; that of a site which cannot take part, as it is."""
        if isinstance(answer, str):
            return Failure(name, answer)
        return self.check(name, answer) if answer.subject == REPLY else answer

    def _wait(self, name: str, node: int, answer: Message) -> None:
        """Ask a site again later, whose operator has not approved the run yet."""
        failure = reply_or_failure(name, answer)
        if isinstance(failure, Failure) and self.waiting.get(name) != failure:
            print(f"waiting for {name}: {failure.reason}", flush=True)
            self.waiting[name] = failure
        self.asked[node] = time.monotonic()

    def _refuse(self, node: int, reason: str) -> None:
        print(f"node {node} takes no part: {reason}", flush=True)
        self.refused.add(node)

    def _exchange(self, messages: Mapping[int, Message], limit: int = MAX_NOTES) -> Iterator[tuple[int, Message | str]]:
        """Yield the reply of each node within the deadline, or why there is none, in the order of arrival."""
        contents = {id(message.content): message.content for message in messages.values()}
        trees = {key: arrays(content) for key, content in contents.items()}  # most messages share one body
        pushed = [self._to_flower(node, message, trees[id(message.content)]) for node, message in messages.items()]
        sent = list(self.grid.push_messages(pushed)) if pushed else []
        waiting = {number: node for number, node in zip(sent, messages, strict=True) if number}
        end, absent = time.monotonic() + self.deadline, dict[int, float]()
        while waiting:
            for reply in self.grid.pull_messages(self._pullable(waiting, absent)):
                if (node := waiting.pop(reply.metadata.reply_to_message_id, None)) is not None:
                    yield node, _answer(reply, limit)
            if waiting and time.monotonic() > end:
                break
            if waiting:
                time.sleep(PAUSE)
        yield from ((node, f"no reply within {self.deadline:g} s") for node in waiting.values())

    def _pullable(self, waiting: Mapping[str, int], absent: dict[int, float]) -> list[str]:
        """Return the messages whose replies can be asked for; `absent`: since when nodes are not connected.

        Flower drops the messages of a node that is not connected as soon as their replies are asked for.
        """
        connected, now = set(self.grid.get_node_ids()), time.monotonic()
        for node in waiting.values():
            if node in connected:
                absent.pop(node, None)
            else:
                absent.setdefault(node, now)
        return [number for number, node in waiting.items() if node not in absent or now > absent[node] + RETURNING]

    def _to_flower(self, node: int, message: Message, tree: ArrayRecord) -> FlowerMessage:
        group = ":".join(str(message.notes[key]) for key in ("round", "kind") if key in message.notes)
        return FlowerMessage(to_records(message, tree), node, TYPES[message.subject], ttl=self.deadline, group_id=group)


def _answer(message: FlowerMessage, limit: int = MAX_NOTES) -> Message | str:
    """Return the message that a node replied with, or why there is none."""
    if message.has_error():
        meaning = FLOWER_ERRORS.get(message.error.code, "unknown")  # its text is of the site's machine, not repeated
        return f"Flower reports: {meaning} (error {message.error.code})"
    try:
        read = from_records(message.content, limit)
        return replace(read, packed=None, received=None)  # its bytes are not needed any more
    except Exception as error:  # whatever one node sends, the others continue
        return printable(f"its reply cannot be read: {type(error).__name__}: {error}")


def client_app(answer: Callable[[Context, Message], Message] | None = None) -> ClientApp:
    """Return the Flower app of a site: it answers every message for the site that the node's config describes."""
    app, respond = ClientApp(), answer or at_site

    def handle(message: FlowerMessage, context: Context) -> FlowerMessage:
        received: Message | None = None
        try:
            until = message.metadata.created_at + message.metadata.ttl  # clocks differ by seconds at most
            received = replace(from_records(message.content), until=until)
            return FlowerMessage(to_records(respond(context, received)), reply_to=message)
        except Exception as error:  # whatever it is: Flower would send its text
            folder = context.node_config.get("folder")
            reply = failure_message(error, Path(str(folder)) if folder else None, received)
            return FlowerMessage(to_records(reply), reply_to=message)

    for kind in TYPES.values():
        category, action = kind.split(".")
        getattr(app, category)(action)(handle)
    return app


def at_site(context: Context, message: Message) -> Message:
    """Answer a message for the site that a node's config describes."""
    site_config = SiteConfig.parse(context.node_config)
    torch.set_num_threads(site_config.threads)
    return respond(site_config, message, stop_check(site_config, context.run_id, context.node_id))


def server_app() -> ServerApp:
    """Return the Flower app of the server: one run, whose configuration and sites are in Flower's run config."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            run_server(grid, context.run_config)
        except FedbeyondError as error:
            print_in_one_line(error)
            raise  # Flower then lists the run as failed

    return app


def run_server(grid: Grid, given: Mapping[str, Any]) -> None:
    """Run what Flower's run config describes, and print a line for each round."""
    torch.set_num_threads(int(given.get("threads", 1)))
    config = parse(json.loads(str(given["config"])), "the submitted run")
    transport = FlowerTransport(grid, float(given.get("deadline", 3600)))
    sites, guests = (tuple(filter(None, str(given.get(key, "")).split(","))) for key in ("sites", "guests"))
    home = run_folder.path(Path(str(given["out"])), config)
    agreed = json.loads(str(given.get("images", "{}")))
    setup = enrolment.prepare(config, transport, sites, guests, home=home, agreed=agreed)
    for line in runner.run(setup, home):
        print(f"round {line['round'] + 1} of {line['rounds']}: {format_line(line)}", flush=True)


def print_in_one_line(error: FedbeyondError) -> None:
    """Print an error that the user can fix; Flower logs its traceback only if the user asks for tracebacks."""
    print(f"error: {' '.join(str(error).split())}", flush=True)
    if not traceback_wanted():
        logging.getLogger("flwr").addFilter(
            lambda record: (
                not (record.exc_info and record.exc_info[1] is error) and "Exit Code: " not in str(record.msg)
            )
        )


def format_line(line: Mapping[str, Any]) -> str:
    """Describe the scores and rejected replies of a result line in a few words."""
    scores = line.get("scores", {}).items()
    texts = [f"{n} {s[p]['accuracy']:.1%}" for n, s in scores for p in ("val", "test") if p in s]
    texts += [f"{name} withholds its scores: {reason}" for name, reason in line.get("withheld", {}).items()]
    return ", ".join(texts + [f"{entry['site']} rejected: {entry['reason']}" for entry in line["rejected"]])
