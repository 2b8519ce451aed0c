"""Simulators that observe a method or reuse its replies, for the laws."""

from copy import deepcopy
from typing import Any

from .. import tree
from ..client import Client
from ..engine.simulator import Simulator
from ..server import Envelope, Failure, Reply, Request, Round
from ..site import Site
from ..tree import Tree
from .compare import ensure_equal
from .faults import FAULTY


class RecordingSimulator(Simulator):
    """A simulator that records the names of all entries of private states: initial, committed and pending."""

    def __init__(self, client: Client, sites: list[Site]) -> None:
        super().__init__(client, sites)
        self.kept: set[str] = set()

    def _answer(self, name: str, request: Request, envelope: Envelope) -> Reply | Failure:
        reply, state = super()._answer(name, request, envelope), self.client_states[name]
        for private in (state["private"], state.get("pending", state)["private"]):
            self.kept |= private.keys() if isinstance(private, dict) else set()  # the law `storable` rejects others
        return reply


def recording_round(reads: set[str]) -> type[Round]:
    """Return a kind of `Round` that adds to `reads` if the total number of rounds is read."""

    class RecordingRound(Round):
        def __getattribute__(self, name: str) -> Any:
            if name == "total":
                reads.add("Round.total")
            return super().__getattribute__(name)

    return RecordingRound


def recording_site(reads: set[str]) -> type[Site]:
    """Return a kind of `Site` that adds to `reads` if a handler reads the total number of rounds."""

    class RecordingSite(Site):
        def __getattribute__(self, name: str) -> Any:
            if name == "rounds":
                reads.add("Site.rounds")
            return super().__getattribute__(name)

        def reseed(self, round_number: int, kind: str) -> Site:
            before = reads.copy()
            super().reseed(round_number, kind)  # the schedule of the learning rate is not the method's
            reads.intersection_update(before)
            return self

    return RecordingSite


class PuritySimulator(Simulator):
    """A simulator that raises `LawBroken` if a handler changes its arguments."""

    def _answer(self, name: str, request: Request, envelope: Envelope) -> Reply | Failure:
        arguments = {"received": request.body, "private": self.client_states[name]}
        before = deepcopy(arguments)
        reply = super()._answer(name, request, envelope)
        ensure_equal(arguments, before, f"the handler of {request.kind!r} changed its arguments")
        return reply


class CachingSimulator(Simulator):
    """A simulator that reuses replies of sound sites to the same request in the same state."""

    def __init__(self, client: Client, sites: list[Site], cache: dict[bytes, tuple[Reply, Tree]]) -> None:
        super().__init__(client, sites)
        self.cache = cache

    def ask(self, request: Request, envelope: Envelope) -> dict[str, Reply | Failure]:
        sound = {name: self._key(name, request, envelope) for name in request.to if name != FAULTY}
        replies = super().ask(
            request._replace(to=tuple(n for n in request.to if sound.get(n) not in self.cache)), envelope
        )
        for name, key in sound.items():
            if key in self.cache:
                replies[name], self.client_states[name] = self.cache[key]
            elif isinstance(reply := replies[name], Reply):
                self.cache[key] = (reply, self.client_states[name])
        return replies

    def _key(self, name: str, request: Request, envelope: Envelope) -> bytes:
        state = tree.digest({"body": request.body, "clients": self.client_states[name]})
        return f"{name} {request.kind} {envelope} ".encode() + state
