"""Federations that go wrong on purpose, and one that passes everything through bytes."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Literal

import torch

from .. import tree
from ..client import Client
from ..engine.protocol import Federation
from ..engine.simulator import Simulator
from ..experiment.checkpoint import pack, unpack
from ..server import Failure, Post, Reply, Request
from ..site import Site
from ..tree import Tree

Fault = Literal["absent", "raises", "stalls", "NaN", "wrong shape", "another name"]
FAULTS: tuple[Fault, ...] = ("raises", "stalls", "NaN", "wrong shape", "another name")
FAULTY = "north"  # the toy site that goes wrong


@dataclass(frozen=True)
class Faulty:
    """A federation in which one site goes wrong in one round, in its answers to one kind of request or to all.

    `absent` is what every fault should amount to.
    """

    inner: Simulator
    site: str
    round: int
    fault: Fault
    kind: str = ""  # all

    @property
    def clients(self) -> tuple[str, ...]:
        return self.inner.clients

    def ask(self, request: Request, post: Post) -> Mapping[str, Reply | Failure]:
        here = post.round == self.round and self.kind in ("", request.kind)
        if not here or self.site not in request.to:
            return self.inner.ask(request, post)
        others = request._replace(to=tuple(name for name in request.to if name != self.site))
        answers = self.inner.ask(others, post)
        if self.fault == "raises":
            answers[self.site] = Failure(self.site, "RuntimeError: out of memory")
        elif self.fault != "absent":  # it trains and wants to keep what it learnt, but its answer is of no use
            answer = self.inner.ask(request._replace(to=(self.site,)), post)[self.site]
            answers[self.site] = spoil(answer, self.fault, next(n for n in self.clients if n != self.site))
        return answers


def spoil(answer: Reply | Failure, fault: Fault, other: str) -> Reply | Failure:
    """A good answer made useless."""
    if isinstance(answer, Failure) or fault == "stalls":
        return Failure(answer.client, "no answer within the deadline")
    if fault == "another name":
        return answer._replace(client=other)
    wrong = {"NaN": lambda leaf: torch.full_like(leaf, torch.nan if leaf.is_floating_point() else -1)}
    change = wrong.get(fault, lambda leaf: leaf[None])
    return answer._replace(body=tree.map(change, answer.body))


class Remembering(Simulator):
    """A simulator whose sound sites are asked the same thing, in the same state, only once; the faulty one always."""

    def __init__(self, client: Client, sites: list[Site], heard: dict[bytes, tuple[Reply, Tree]]) -> None:
        super().__init__(client, sites)
        self.heard = heard

    def ask(self, request: Request, post: Post) -> dict[str, Reply | Failure]:
        sound = {name: self._key(name, request, post) for name in request.to if name != FAULTY}
        fresh = super().ask(request._replace(to=tuple(n for n in request.to if sound.get(n) not in self.heard)), post)
        for name, key in sound.items():
            if key in self.heard:
                fresh[name], self.slots[name] = self.heard[key]
            elif isinstance(reply := fresh[name], Reply):
                self.heard[key] = (reply, self.slots[name])
        return fresh

    def _key(self, name: str, request: Request, post: Post) -> bytes:
        state = tree.digest({"body": request.body, "slots": self.slots[name]})
        return f"{name} {request.kind} {post} ".encode() + state


@dataclass(frozen=True)
class Wire:
    """A federation whose requests and replies cross as bytes and arrive in any order."""

    inner: Federation
    seed: int = 0

    @property
    def clients(self) -> tuple[str, ...]:
        return self.inner.clients

    def ask(self, request: Request, post: Post) -> Mapping[str, Reply | Failure]:
        order = Random(f"{self.seed}/{post.ticket}").sample(request.to, len(request.to))
        answers: dict[str, Reply | Failure] = {}
        for name in order:
            answer = self.inner.ask(Request(request.kind, across(request.body), (name,)), post)[name]
            answers[name] = answer if isinstance(answer, Failure) else answer._replace(body=across(answer.body))
        return answers


def across(body: Tree) -> Tree:
    """A tree as it arrives after a journey as bytes."""
    return unpack(pack(body))
