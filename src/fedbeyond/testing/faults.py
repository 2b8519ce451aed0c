"""Federations with a faulty site, and a federation that sends everything as bytes."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Literal

import torch

from .. import tree
from ..engine.protocol import Federation
from ..engine.simulator import Simulator
from ..experiment.checkpoint import pack, unpack
from ..server import Envelope, Failure, Reply, Request
from ..tree import Tree

Fault = Literal["absent", "raises", "stalls", "NaN", "wrong shape", "another name"]
FAULTS: tuple[Fault, ...] = ("raises", "stalls", "NaN", "wrong shape", "another name")
FAULTY = "north"  # the faulty toy site


@dataclass(frozen=True)
class Faulty:
    """A federation in which one site is faulty in one round, in its replies to one kind of request or to all kinds.

    Every fault should have the same effect as the fault `absent`.
    """

    inner: Simulator
    site: str
    round: int
    fault: Fault
    kind: str = ""  # empty: all kinds

    @property
    def clients(self) -> tuple[str, ...]:
        return self.inner.clients

    def ask(self, request: Request, envelope: Envelope) -> Mapping[str, Reply | Failure]:
        active = envelope.round == self.round and self.kind in ("", request.kind)
        if not active or self.site not in request.to:
            return self.inner.ask(request, envelope)
        others = request._replace(to=tuple(name for name in request.to if name != self.site))
        replies = self.inner.ask(others, envelope)
        if self.fault == "raises":
            replies[self.site] = Failure(self.site, "RuntimeError: out of memory")
        elif self.fault != "absent":  # the site trains and has a pending state, but its reply is not usable
            reply = self.inner.ask(request._replace(to=(self.site,)), envelope)[self.site]
            replies[self.site] = spoil(reply, self.fault, next(n for n in self.clients if n != self.site))
        return replies


def spoil(reply: Reply | Failure, fault: Fault, other: str) -> Reply | Failure:
    """Return an unusable version of a good reply."""
    if isinstance(reply, Failure) or fault == "stalls":
        return Failure(reply.client, "no answer within the deadline")
    if fault == "another name":
        return reply._replace(client=other)
    wrong = {"NaN": lambda leaf: torch.full_like(leaf, torch.nan if leaf.is_floating_point() else -1)}
    change = wrong.get(fault, lambda leaf: leaf[None])
    return reply._replace(body=tree.map(change, reply.body))


@dataclass(frozen=True)
class Wire:
    """A federation whose requests and replies are sent as bytes and arrive in a random order."""

    inner: Federation
    seed: int = 0

    @property
    def clients(self) -> tuple[str, ...]:
        return self.inner.clients

    def ask(self, request: Request, envelope: Envelope) -> Mapping[str, Reply | Failure]:
        order = Random(f"{self.seed}/{envelope.ticket}").sample(request.to, len(request.to))
        replies: dict[str, Reply | Failure] = {}
        for name in order:
            reply = self.inner.ask(Request(request.kind, through_bytes(request.body), (name,)), envelope)[name]
            replies[name] = reply if isinstance(reply, Failure) else reply._replace(body=through_bytes(reply.body))
        return replies


def through_bytes(body: Tree) -> Tree:
    """Encode a tree as bytes and decode it again."""
    return unpack(pack(body))
