"""fedbeyond over Flower: letters as Flower messages, and the two apps. Flower is imported here and nowhere else.

Its Grid and Message API are used, not its Strategy: a method's conversation is played as in the simulator.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .deploy.operations import SILENT

os.environ.update(SILENT)  # before Flower is imported: it looks once

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError as error:
    raise ConfigError(f"Flower is not installed ({error}); pip install 'fedbeyond[flower]'") from None

import torch

from ..experiment import runner
from ..experiment.checkpoint import pack
from ..experiment.config import parse
from ..server import Failure
from . import remote
from .messages import ASK, ENROL, EVALUATE, MEASURE, Letter, failure, opened
from .node import respond
from .site_config import Machine

TYPES = {  # as Flower names and routes them
    ENROL: "query.enrol",
    ASK: "train.ask",
    EVALUATE: "evaluate.models",
    MEASURE: "evaluate.moments",
}
PAUSE = 0.5  # seconds between two looks for answers
TREE, NOTES = "tree", "notes"


def arrays(content: bytes) -> ArrayRecord:
    """A tree whole, as one array of bytes: what is many requests leaf by leaf is then one."""
    return ArrayRecord({TREE: Array("uint8", (len(content),), "safetensors", content)})


def written(letter: Letter, tree: ArrayRecord | None = None) -> RecordDict:
    """A letter as Flower's records."""
    return RecordDict({TREE: tree or arrays(letter.content), NOTES: ConfigRecord({NOTES: letter.text})})


def found(content: RecordDict) -> Letter:
    """The letter in Flower's records; ValueError if there is none."""
    try:
        return opened(str(content.config_records[NOTES][NOTES]), content.array_records[TREE][TREE].data)
    except (KeyError, TypeError) as error:
        raise ValueError(f"no letter of fedbeyond: {error}") from None


class Lines:
    """A carrier over a Flower grid: knows the machines by the names of their sites."""

    def __init__(self, grid: Grid, deadline: float = 3600.0) -> None:
        self.grid, self.deadline = grid, deadline
        self.nodes: dict[str, int] = {}  # by the name of the site
        self.refused: dict[int, str] = {}  # machines that are none of ours, and why
        self.hello, self.expected = Letter(ENROL, {}), frozenset[str]()

    def meet(
        self, hello: Letter, expected: Sequence[str], patience: float | None = None
    ) -> dict[str, Letter | Failure]:
        self.hello, self.expected = hello, frozenset(expected)
        met: dict[str, Letter | Failure] = {}
        missing, began = set[str](), time.monotonic()
        while True:
            met |= self._greet()
            if missing != self.expected - met.keys():
                missing = {*self.expected} - met.keys()
                print(f"waiting for {', '.join(sorted(missing)) or 'nobody else'}", flush=True)
            if not missing or time.monotonic() > began + (patience or self.deadline):
                return met
            time.sleep(PAUSE)

    def carry(self, letters: Mapping[str, Letter]) -> dict[str, Letter | Failure]:
        there = set(self.grid.get_node_ids())
        if any(self.nodes.get(name) not in there for name in letters):
            self._greet()  # a machine that was started again may have another number
            there = set(self.grid.get_node_ids())
        nodes = {self.nodes[name]: letter for name, letter in letters.items() if self.nodes.get(name) in there}
        names = {node: name for name, node in self.nodes.items()}
        answers: dict[str, Letter | Failure] = {name: Failure(name, "is not connected") for name in letters}
        for node, answer in self._exchange(nodes):
            name = names[node]
            answers[name] = Failure(name, answer) if isinstance(answer, str) else answer
        return answers

    def _greet(self) -> dict[str, Letter | Failure]:
        """Ask machines that are not known who they are."""
        registered = {int(node.node_id): str(node.name) for node in self.grid.get_nodes()}
        for node, own in registered.items():
            if own and own not in self.expected and node not in self.refused:  # it is not even told what is run
                self._refuse(node, f"the federation has no site {own!r}")
        strangers = [node for node in registered if node not in self.nodes.values() and node not in self.refused]
        met: dict[str, Letter | Failure] = {}
        for node, answer in self._exchange(dict.fromkeys(strangers, self.hello)):
            own = registered[node]  # whom its key belongs to
            claimed = own if isinstance(answer, str) else str(answer.notes.get("site", own))
            if own and claimed != own:
                reason = f"it says it is {claimed!r}, and its key is that of {own!r}"
                print(f"node {node} takes no part: {reason}", flush=True)
                met[own] = Failure(own, reason)  # and is asked again, when it may be mended
            elif self.nodes.get(claimed) in registered:
                self._refuse(node, f"another machine is {claimed!r} already")
            elif claimed not in self.expected:
                said = answer if isinstance(answer, str) else answer.notes.get("reason", "")
                self._refuse(node, f"the federation has no site {claimed!r}{f' ({said})' if said else ''}")
            else:
                self.nodes[claimed] = node
                met[claimed] = Failure(claimed, answer) if isinstance(answer, str) else answer
            if all(self.nodes.get(name) in registered for name in self.expected):
                break  # nobody else is waited for
        return met

    def _refuse(self, node: int, reason: str) -> None:
        print(f"node {node} takes no part: {reason}", flush=True)
        self.refused[node] = reason

    def _exchange(self, letters: Mapping[int, Letter]) -> Iterator[tuple[int, Letter | str]]:
        """What each machine answers within the deadline, or why it does not, in the order of arrival."""
        packed = {id(letter.body): letter.body for letter in letters.values()}
        trees = {key: arrays(pack(body)) for key, body in packed.items()}  # most letters have the same
        messages = [self._message(node, letter, trees[id(letter.body)]) for node, letter in letters.items()]
        sent = list(self.grid.push_messages(messages)) if messages else []
        waiting = {number: node for number, node in zip(sent, letters, strict=True) if number}
        end = time.monotonic() + self.deadline
        while waiting:
            for message in self.grid.pull_messages(list(waiting)):
                if (node := waiting.pop(message.metadata.reply_to_message_id, None)) is not None:
                    yield node, _answer(message)
            if waiting and time.monotonic() > end:
                break
            if waiting:
                time.sleep(PAUSE)
        yield from ((node, f"no answer within {self.deadline:g} s") for node in waiting.values())

    def _message(self, node: int, letter: Letter, tree: ArrayRecord) -> Message:
        about = ":".join(str(letter.notes[key]) for key in ("round", "kind") if key in letter.notes)
        return Message(written(letter, tree), node, TYPES[letter.subject], ttl=self.deadline, group_id=about)


def _answer(message: Message) -> Letter | str:
    if message.has_error():
        return f"Flower says: {message.error.reason} (error {message.error.code})"
    try:
        return found(message.content)
    except Exception as error:  # whatever a machine sends, the others go on
        return f"its answer cannot be read: {type(error).__name__}: {error}"


def client_app(answer: Callable[[Context, Letter], Letter] | None = None) -> ClientApp:
    """The app of a site: every letter goes to the site that the node's own config describes."""
    app, respond = ClientApp(), answer or at_site

    def handle(message: Message, context: Context) -> Message:
        try:
            reply = respond(context, found(message.content))
        except Exception as error:
            reply = failure(error)
        return Message(written(reply), reply_to=message)

    for kind in TYPES.values():
        category, action = kind.split(".")
        getattr(app, category)(action)(handle)
    return app


def at_site(context: Context, letter: Letter) -> Letter:
    """The answer of the site that a node's config describes."""
    machine = Machine.of(context.node_config)
    torch.set_num_threads(machine.threads)
    return respond(machine, letter)


def server_app() -> ServerApp:
    """The app of the server: one run, whose configuration and sites stand in Flower's run config."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        given = context.run_config
        torch.set_num_threads(int(given.get("threads", 1)))
        config = parse(json.loads(str(given["config"])), "the submitted run")
        lines = Lines(grid, float(given.get("deadline", 3600)))
        sites, guests = (tuple(filter(None, str(given.get(key, "")).split(","))) for key in ("sites", "guests"))
        home = runner.place(Path(str(given["out"])), config)
        setup = remote.prepare(config, lines, sites, guests, home=home)
        for line in runner.run(setup, home):
            print(f"round {line['round'] + 1} of {line['rounds']}: {told(line)}", flush=True)

    return app


def told(line: Mapping[str, Any]) -> str:
    """A result line in a few words."""
    judged = line.get("scores", {}).items()
    scores = [f"{n} {s[p]['accuracy']:.1%}" for n, s in judged for p in ("val", "test") if p in s]
    absent = [f"{aside['site']} aside: {aside['reason']}" for aside in line["aside"]]
    return ", ".join(scores + absent)
