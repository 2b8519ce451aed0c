"""The engine: `play` carries one round's conversation, over whoever can carry a request to the clients."""

from collections import Counter
from typing import Any

import torch

from .. import tree
from ..errors import FederationError
from ..method import Method
from ..server import Post, Reply, Request, Round
from ..site import derive
from ..timer import part
from ..tree import Tree
from .aggregation import heard
from .gate import Gate, finite
from .protocol import Federation


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
