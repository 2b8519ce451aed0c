"""What a server says and hears: requests, replies, one round as a conversation, and how replies are weighed."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from . import tree
from .shelf import Shelf
from .tree import Tree


class Request(NamedTuple):
    """One body for all that it is sent to."""

    kind: str  # which handler answers: "train", or a phase of the method's own
    body: Tree
    to: tuple[str, ...]
    quorum: int | None = None  # usable answers that are enough; None: as the gate has it


class Reply(NamedTuple):
    """What one client answered."""

    client: str
    body: Tree
    weight: float  # how much it counts in a mean; its number of training images until it is weighed
    came: Tree | None = None  # the body as it came, if a wrapper has changed it

    @property
    def own(self) -> Tree:
        """What the client itself sent."""
        return self.body if self.came is None else self.came


@dataclass(frozen=True)
class Round:
    """Where we are in a run."""

    number: int  # from 0
    total: int
    clients: tuple[str, ...]  # who takes part in this round
    enrolled: tuple[str, ...]  # who could
    seed: int = 0  # of the run, for servers that draw
    run: str = ""  # which run it is, for sites that keep the states of several
    shelf: Shelf = field(default_factory=Shelf)  # the run's, for what its server need not carry along in its state


class Post(NamedTuple):
    """What goes with a request: which exchange of which run it is, and whose earlier answers were accepted."""

    round: int
    ticket: int
    accepted: Mapping[str, int]  # client -> the ticket of its last accepted reply
    run: str = ""

    def to(self, client: str) -> "Post":
        """What one client need know of it."""
        return self._replace(accepted={name: ticket for name, ticket in self.accepted.items() if name == client})


Conversation = Generator[Request, list[Reply], Tree]


class Server(NamedTuple):
    """The state a server starts with, and one round: yields requests, is sent replies, returns the next state."""

    init: Callable[[Tree], Tree]
    round: Callable[[Tree, Round], Conversation]


class Weighting(NamedTuple):
    """How much each training reply counts, and what to remember of it."""

    init: Callable[[tuple[str, ...]], Tree]
    update: Callable[[list[Reply], Tree, Round], tuple[list[float], Tree]]


def forgetful(weigh: Callable[[Reply], float]) -> Weighting:
    """A weighting that looks at each reply alone and remembers nothing."""
    return Weighting(lambda clients: {}, lambda replies, memory, now: ([weigh(r) for r in replies], memory))


by_size = forgetful(lambda reply: reply.weight)
uniform = forgetful(lambda reply: 1.0)


def mean(replies: list[Reply], key: str) -> Any:
    """The weighted mean of what the replies hold under `key`."""
    return tree.mean([reply.body[key] for reply in replies], [reply.weight for reply in replies])


def gather(kind: str, bank: Tree, now: Round, body: Tree | None = None) -> Conversation:
    """`bank` with the answers to `kind` of those clients of this round who have not yet given theirs.

    For what is asked of a site once in a run: `bank = yield from gather("style", state["bank"], now)`. A site that
    fails to answer is asked again in its next round.
    """
    new = tuple(client for client in now.clients if client not in bank)
    if not new:
        return bank
    others = len(new) < len(now.clients)  # the round can go on without the new ones
    replies = yield Request(kind, body or {}, new, quorum=0 if others else 1)
    return bank | {reply.client: reply.body for reply in replies}


def average(state: Tree, now: Round) -> Conversation:
    """Send everything, train, take the mean of everything."""
    replies = yield Request("train", state, now.clients)
    return {name: mean(replies, name) for name in state}


averaging = Server(init=lambda nets: nets, round=average)
