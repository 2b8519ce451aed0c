"""The server side of a method: requests, replies, a round as a generator, weightings, and the model store."""

import re
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

from . import tree
from .errors import StorageError
from .tree import Tree

MAX_WEIGHT = 10**12  # largest plausible sample count in a reply
KEPT_ROUNDS = 3  # entries stay for 3 rounds: current, last (checkpoint maybe not yet on disk), and the one before


class Request(NamedTuple):
    """A request that a server round yields: the same body for all receivers."""

    kind: str  # name of the client's handler: "train", or another phase of the method
    body: Tree
    to: tuple[str, ...]
    quorum: int | None = None  # minimum number of usable replies; None: the gate's default


class Reply(NamedTuple):
    """The reply of one client."""

    client: str
    body: Tree
    weight: float  # weight in a mean; the number of training images until a weighting replaces it
    received: Tree | None = None  # the body as received, if a wrapper has changed it

    @property
    def own(self) -> Tree:
        """The body that the client sent, before any wrapper changed it."""
        return self.body if self.received is None else self.received


class Failure(NamedTuple):
    """A client without a usable reply, and the reason."""

    client: str
    reason: str
    error: Exception | None = None


class ModelStore:
    """Large trees of a run by owner (a method or wrapper) and name; in memory unless `entries` is given."""

    def __init__(self, entries: MutableMapping[str, Tree] | None = None) -> None:
        self.entries: MutableMapping[str, Tree] = {} if entries is None else entries
        self._named: dict[str, deque[set[str]]] = defaultdict(lambda: deque(maxlen=KEPT_ROUNDS))

    def put(self, owner: str, name: str, tree: Tree) -> None:
        """Store a tree; it is completely written when this returns."""
        self.entries[entry_name(owner, name)] = tree

    def get(self, owner: str, name: str) -> Tree:
        """Return a stored tree; raise `StorageError` if there is none."""
        try:
            return self.entries[entry_name(owner, name)]
        except KeyError:
            raise StorageError(
                f"the model store has no entry {name!r} of {owner}; pass the same store to all rounds of a run: "
                "Round(..., store=store)"
            ) from None

    def keep(self, owner: str, names: Iterable[str]) -> None:
        """Declare at the end of a round which entries the server state before or after it refers to; delete the others.

        Entries declared in the two rounds before also stay: a stopped run may resume from there.
        """
        recent = self._named[owner]
        recent.append({entry_name(owner, name) for name in names})
        for entry in [entry for entry in self.entries if entry.startswith(f"{owner}.")]:
            if not any(entry in named for named in recent):
                del self.entries[entry]


def entry_name(owner: str, name: str) -> str:
    """Return a unique name for an owner and a name that is valid as a file name on any system."""
    plain = re.sub(r"[^\w-]+", "-", name, flags=re.ASCII)[:80]
    return f"{owner}.{plain}-{sha256(name.encode()).hexdigest()[:16]}"


@dataclass(frozen=True)
class Round:
    """The current round, its clients, and the run it belongs to."""

    number: int  # from 0
    total: int  # a method whose results depend on it declares `uses_total`
    clients: tuple[str, ...]  # clients of this round
    enrolled: tuple[str, ...]  # all clients of the run
    seed: int = 0  # seed of the run, for servers that draw random numbers
    run: str = ""  # identifies the run: a site may keep states of several runs
    store: ModelStore = field(default_factory=ModelStore)  # large trees that are not part of the server state

    @property
    def is_middle(self) -> bool:
        """Whether half of the rounds are done, for messages; results must not depend on it without `uses_total`."""
        return bool(self.number == vars(self)["total"] // 2)  # not self.total, which the law `declared` observes


class Envelope(NamedTuple):
    """Metadata of a request: run, round, ticket of the exchange, and the last accepted reply of each client."""

    round: int
    ticket: int
    accepted: Mapping[str, int]  # client -> the ticket of its last accepted reply
    run: str = ""

    def to(self, client: str) -> "Envelope":
        """Return the envelope with only this client's entry in `accepted`."""
        return self._replace(accepted={name: ticket for name, ticket in self.accepted.items() if name == client})

    def to_dict(self, client: str) -> dict[str, Any]:
        """Return what one client must know of it as JSON values, for a message or a worker process."""
        return self.to(client)._asdict()

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "Envelope":
        """Return the envelope that `to_dict` described; KeyError, TypeError or ValueError if the record has none."""
        accepted = {str(name): int(ticket) for name, ticket in dict(record["accepted"]).items()}
        return cls(int(record["round"]), int(record["ticket"]), accepted, str(record["run"]))


Conversation = Generator[Request, list[Reply], Tree]


class Server(NamedTuple):
    """A server: its initial state, and a round as a generator that yields requests and returns the next state."""

    init: Callable[[Tree], Tree]
    round: Callable[[Tree, Round], Conversation]


class Weighting(NamedTuple):
    """A weighting of training replies: its initial memory, and an update that returns weights and the next memory."""

    init: Callable[[tuple[str, ...]], Tree]
    update: Callable[[list[Reply], Tree, Round], tuple[list[float], Tree]]


def stateless(weigh: Callable[[Reply], float]) -> Weighting:
    """Return a weighting that computes each weight from its reply alone."""
    return Weighting(lambda clients: {}, lambda replies, memory, now: ([weigh(r) for r in replies], memory))


by_size = stateless(lambda reply: reply.weight)
uniform = stateless(lambda reply: 1.0)


def mean(replies: list[Reply], key: str) -> Any:
    """Return the weighted mean of `key` over the replies."""
    return tree.mean([reply.body[key] for reply in replies], [reply.weight for reply in replies])


def request_once(kind: str, bank: Tree, now: Round, body: Tree | None = None) -> Conversation:
    """Send `kind` to the clients of this round that are not in `bank` yet, and return `bank` with their replies.

    For a request that each site handles once in a run: `bank = yield from request_once("style", state["bank"], now)`.
    A site without a usable reply receives the request again in its next round.
    """
    new = tuple(client for client in now.clients if client not in bank)
    if not new:
        return bank
    others = len(new) < len(now.clients)  # then the round can continue even if no new client replies
    replies = yield Request(kind, body or {}, new, quorum=0 if others else 1)
    return bank | {reply.client: reply.body for reply in replies}


def average(state: Tree, now: Round) -> Conversation:
    """Send the whole state, train, and return the weighted mean of each of its entries."""
    replies = yield Request("train", state, now.clients)
    return {name: mean(replies, name) for name in state}


averaging = Server(init=lambda nets: nets, round=average)
