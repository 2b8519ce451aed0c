"""Run one round: send each request of the server's generator to the clients, and its replies back to the generator."""

from collections import Counter
from typing import Any

import torch

from .. import timer, tree
from .._method import Method
from ..errors import FederationError
from ..server import Envelope, Reply, Request, Round
from ..site import derive
from ..tree import Tree
from .aggregation import receive
from .gate import Gate, finite
from .protocol import Federation


def start(method: Method, clients: tuple[str, ...], models: Tree) -> Tree:
    """Return the state of a run before its first round, given the models that the server starts with."""
    return {
        "server": method.server.init(models),
        "weighting": method.weighting.init(clients) if method.weighting else {},
        "exchange": {"ticket": torch.tensor(0), "accepted": {}, "asked": {}},
    }


def play(method: Method, state: Tree, now: Round, federation: Federation, gate: Gate) -> tuple[Tree, Tree]:
    """Run one round; return the next state and the round log."""
    conversation, memory, exchange = method.server.round(state["server"], now), state["weighting"], state["exchange"]
    round_log: dict[str, Any] = {"weights": {}, "rejected": [], "ledger": [], "bytes_down": Counter()}
    request = next(conversation)
    while True:
        accepted = {client: int(ticket) for client, ticket in exchange["accepted"].items()}
        envelope = Envelope(now.number, int(exchange["ticket"]), accepted, now.run)
        replies, rejected, ledger = receive(method, request, envelope, federation, gate)
        if request.kind == "train" and method.weighting:
            weights, memory = method.weighting.update(replies, memory, now)
            replies = [r._replace(weight=float(w)) for r, w in zip(replies, weights, strict=True)]
            total = sum(weights)
            round_log["weights"] = {reply.client: reply.weight / total for reply in replies}
        round_log["rejected"] += [{"site": f.client, "request": request.kind, "reason": f.reason} for f in rejected]
        round_log["ledger"] += ledger
        round_log["bytes_down"].update(dict.fromkeys(request.to, tree.size(request.body)))
        exchange = advance(exchange, request, replies)
        try:
            with timer.section("server"):
                request = conversation.send(replies)
        except StopIteration as end:
            if not finite(*tree.leaves(end.value)):
                raise FederationError("the aggregate of valid replies is not finite: a fault of the method") from None
            return {"server": end.value, "weighting": memory, "exchange": exchange}, round_log


def advance(exchange: Tree, request: Request, replies: list[Reply]) -> Tree:
    """Return the exchange counters after a request: the accepted tickets, and how often each site was asked."""
    accepted, before = {reply.client: exchange["ticket"] for reply in replies}, exchange.get("asked", {})
    asked = {client: before.get(client, 0) + torch.tensor(1) for client in request.to}
    return {"ticket": exchange["ticket"] + 1, "accepted": exchange["accepted"] | accepted, "asked": before | asked}


def participants(clients: tuple[str, ...], count: int | None, seed: int, number: int) -> tuple[str, ...]:
    """Return the clients of a round: all of them, or `count` drawn for this round."""
    if not count or count >= len(clients):
        return clients
    rng = torch.Generator().manual_seed(derive(seed, number, "participants"))
    return tuple(sorted(clients[i] for i in torch.randperm(len(clients), generator=rng)[:count].tolist()))
