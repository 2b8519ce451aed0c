"""The engine: `play` carries one round's conversation, over whoever can carry a request to the clients."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch

from . import tree
from .client import Client, answer, enrol, rested, weight
from .data.site import Site, derive
from .errors import FederationError
from .flops import Tally
from .gate import Failure, Gate, finite
from .hearing import Federation as Federation
from .hearing import heard
from .method import Method
from .reestimation import SuspendedPasses
from .server import Post, Reply, Request, Round
from .stopwatch import part
from .tree import Tree


class Engine(Federation, Protocol):
    """A federation on which whole runs are played: it also knows what its sites hold, here or elsewhere."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """How many images each site trains on."""

    @property
    def kept(self) -> Mapping[str, int]:
        """Bytes of private state at each site."""

    @property
    def answered(self) -> Mapping[str, int]:
        """How many different answers each site has given, where it counts them itself: under noise, each costs."""

    def enrol(self) -> None:
        """Begin a run: every site has the private state it starts with."""

    def state(self) -> Tree:
        """What a checkpoint has to hold of the sites; nothing if they keep it themselves."""

    def restore(self, saved: Tree) -> None:
        """Go on from what a checkpoint held of them."""

    def measure(self, request: Request, number: int) -> Mapping[str, Reply | Failure]:
        """Ask sites for moments of a model after a round; it changes nothing that they keep."""

    def close(self) -> None:
        """Let go of what it needs only while a run goes on."""


def start(method: Method, clients: tuple[str, ...], shared: Tree) -> Tree:
    """The state of a run before its first round, from the trees of the networks that the server holds."""
    return {
        "server": method.server.init(shared),
        "weighting": method.weighting.init(clients) if method.weighting else {},
        "post": {"ticket": torch.tensor(0), "accepted": {}, "asked": {}},
    }


def play(method: Method, state: Tree, now: Round, federation: Federation, gate: Gate) -> tuple[Tree, Tree]:
    """One round: carry each request to the clients, weigh what comes back; the next state, and what happened."""
    conversation, memory, post = method.server.round(state["server"], now), state["weighting"], state["post"]
    minutes: dict[str, Any] = {"weights": {}, "aside": [], "left": [], "down": Counter()}
    request = next(conversation)
    while True:
        accepted = {client: int(ticket) for client, ticket in post["accepted"].items()}
        sent = Post(now.number, int(post["ticket"]), accepted, now.run)
        replies, aside, left = heard(method, request, sent, federation, gate)
        if request.kind == "train" and method.weighting:
            weights, memory = method.weighting.update(replies, memory, now)
            replies = [r._replace(weight=float(w)) for r, w in zip(replies, weights, strict=True)]
            total = sum(weights)
            minutes["weights"] = {reply.client: reply.weight / total for reply in replies}
        minutes["aside"] += [{"site": f.client, "request": request.kind, "reason": f.reason} for f in aside]
        minutes["left"] += left
        minutes["down"].update(dict.fromkeys(request.to, tree.size(request.body)))
        post = after(post, request, replies)
        try:
            with part("server"):
                request = conversation.send(replies)
        except StopIteration as end:
            if not finite(*tree.leaves(end.value)):
                raise FederationError(
                    "the mean of usable replies is not finite; this is a fault of the method"
                ) from None
            return {"server": end.value, "weighting": memory, "post": post}, minutes


def after(post: Tree, request: Request, replies: list[Reply]) -> Tree:
    """What is known of the exchanges once one is over: whose reply counts, and how often each site was asked."""
    fresh, before = {reply.client: post["ticket"] for reply in replies}, post.get("asked", {})
    asked = {client: before.get(client, 0) + torch.tensor(1) for client in request.to}
    return {"ticket": post["ticket"] + 1, "accepted": post["accepted"] | fresh, "asked": before | asked}


def participants(clients: tuple[str, ...], count: int | None, seed: int, number: int) -> tuple[str, ...]:
    """Who takes part in a round: all, or `count` of them drawn for this round alone."""
    if not count or count >= len(clients):
        return clients
    rng = torch.Generator().manual_seed(derive(seed, number, "participants"))
    return tuple(sorted(clients[i] for i in torch.randperm(len(clients), generator=rng)[:count].tolist()))


class Simulator:
    """A federation in one process: its sites take turns with the same networks."""

    def __init__(self, client: Client, sites: list[Site]) -> None:
        self.client, self.sites = client, {site.name: site for site in sorted(sites, key=lambda s: s.name)}
        self.passes = SuspendedPasses(self.sites)
        self.enrol()

    def enrol(self) -> None:
        """Give every site the private state it starts with."""
        self.slots = {name: enrol(self.client, site) for name, site in self.sites.items()}

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(self.sites)

    @property
    def sizes(self) -> dict[str, int]:
        return {name: site.size for name, site in self.sites.items()}

    @property
    def kept(self) -> dict[str, int]:
        return {name: weight(slots) for name, slots in self.slots.items()}

    @property
    def answered(self) -> dict[str, int]:
        return {}

    def state(self) -> Tree:
        return {name: rested(slots) for name, slots in self.slots.items()}

    def restore(self, saved: Tree) -> None:
        self.slots = saved

    def measure(self, request: Request, number: int) -> dict[str, Reply | Failure]:
        return self.passes.measure(request, number)

    def close(self) -> None:
        self.passes.close()

    def ask(self, request: Request, post: Post) -> dict[str, Reply | Failure]:
        return dict(self.stream(request, post))

    def stream(self, request: Request, post: Post) -> Iterator[tuple[str, Reply | Failure]]:
        """Answers one by one, for who keeps none of them."""
        return ((name, self._answer(name, request, post)) for name in request.to)

    def tallied(self, request: Request, post: Post) -> Iterator[tuple[str, Reply | Failure, int]]:
        """Answers one by one, with what each took."""
        for name in request.to:
            with Tally() as tally:
                found = self._answer(name, request, post)
            yield name, found, tally.total

    def _answer(self, name: str, request: Request, post: Post) -> Reply | Failure:
        try:
            reply, self.slots[name] = answer(self.client, self.sites[name], self.slots[name], request, post)
        except Exception as error:  # a site that fails is a site that does not answer, as over a network
            return Failure(name, f"{type(error).__name__}: {error}", error)
        return reply
