"""What a server says and hears: requests, replies, one round as a conversation, and how replies are weighed."""

import re
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

from . import tree
from .errors import StorageError
from .tree import Tree

MAX_WEIGHT = 10**12  # counts in replies: the largest that is plausible
LATELY = 3  # rounds whose names count: this one, the last, whose checkpoint may be on its way, and the one before


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


class Failure(NamedTuple):
    """No usable answer from a client, and why."""

    client: str
    reason: str
    error: Exception | None = None


class Shelf:
    """Trees by owner (the method or wrapper that put them there) and name; in memory, if nothing else is given."""

    def __init__(self, entries: MutableMapping[str, Tree] | None = None) -> None:
        self.entries: MutableMapping[str, Tree] = {} if entries is None else entries
        self._named: dict[str, deque[set[str]]] = defaultdict(lambda: deque(maxlen=LATELY))

    def put(self, owner: str, name: str, tree: Tree) -> None:
        """Put a tree there, for good before this returns."""
        self.entries[label(owner, name)] = tree

    def get(self, owner: str, name: str) -> Tree:
        """The tree that was put there."""
        try:
            return self.entries[label(owner, name)]
        except KeyError:
            raise StorageError(
                f"{owner} looks for {name} on a shelf that never held it; give all rounds of a run the same one, as in "
                "Round(..., shelf=shelf)"
            ) from None

    def keep(self, owner: str, names: Iterable[str]) -> None:
        """Say at the end of a round what of the owner's is named by the state before it or the state after it.

        The rest may go, but for what was so named in the two rounds before: a stopped run may go on from there.
        """
        lately = self._named[owner]
        lately.append({label(owner, name) for name in names})
        for entry in [entry for entry in self.entries if entry.startswith(f"{owner}.")]:
            if not any(entry in named for named in lately):
                del self.entries[entry]


def label(owner: str, name: str) -> str:
    """One name for both that any file system takes, however long or strange they are, and that is nobody else's."""
    plain = re.sub(r"[^\w-]+", "-", name, flags=re.ASCII)[:80]
    return f"{owner}.{plain}-{sha256(name.encode()).hexdigest()[:16]}"


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
