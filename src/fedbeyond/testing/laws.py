"""The laws that every method and every composition obeys; run them over your own with `check`.

A law takes a function that makes the method, so that a method which remembers something outside its trees is found
out. It raises `LawBroken`, saying what was broken.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch

from .. import tree
from ..client import answer
from ..engine.protocol import Federation
from ..engine.rounds import participants, play, start
from ..engine.simulator import Simulator
from ..errors import FederationError
from ..method import Method
from ..methods.fedavg import fedavg
from ..server import Failure, Post, Reply, Request, Round, Shelf, by_size, uniform
from ..tree import Tree
from . import toy
from .compare import LawBroken, ensure_close, ensure_equal
from .faults import FAULTS, FAULTY, Fault, Faulty, Remembering, Wire, across
from .reordered import backwards, blended
from .statistics import ensure_reestimable

Factory = Callable[[], Method]
Law = Callable[[Factory], None]
ROUNDS = 3


def simulate(
    method: Method,
    rounds: int = ROUNDS,
    federation: Federation | None = None,
    sizes: dict[str, int] = toy.SIZES,
    asked: int | None = None,
    quorum: int | None = None,
) -> tuple[Tree, list[dict[str, Any]]]:
    """A few rounds on the toy sites, all or `asked` of them in each: the last state, and what happened."""
    federation = federation or Simulator(method.client, toy.sites(method, sizes))
    clients, gate, minutes, shelf = federation.clients, toy.gate(method, sizes, quorum), [], Shelf()
    state = start(method, clients, toy.shared(method))
    for number in range(rounds):
        now = Round(number, rounds, participants(clients, asked, 0, number), clients, shelf=shelf)
        state, happened = play(method, state, now, federation, gate)
        minutes.append(happened)
    return state, minutes


class Reference(NamedTuple):
    """An undisturbed run, to compare others with."""

    state: Tree
    minutes: list[dict[str, Any]]
    slots: Tree
    method: Method


@lru_cache(maxsize=16)
def reference(make: Factory) -> Reference:
    """The undisturbed run of a method, played once for all its laws."""
    method = make()
    federation = simulator(method)
    return Reference(*simulate(method, federation=federation), federation.slots, method)


def simulator(method: Method) -> Simulator:
    """The toy sites in one process."""
    return Simulator(method.client, toy.sites(method))


def deterministic(make: Factory) -> None:
    """Two runs with one seed are equal, bit for bit, though the method has been used before."""
    first, _, _, method = reference(make)
    ensure_equal(first, simulate(method)[0], "a second run of the same method gives other numbers")
    if not all(bool(torch.isfinite(leaf).all()) for leaf in tree.leaves(first)):
        raise LawBroken("the state has numbers that are not finite")


def storable(make: Factory) -> None:
    """States are trees that files and wires can carry: flattened and restored they are the same."""
    state, _, slots, _ = reference(make)
    for what, one in (("server", state), *slots.items()):
        try:
            restored = tree.unflatten(tree.flatten(one))
        except (AttributeError, TypeError, ValueError) as error:
            raise LawBroken(f"the state of {what} cannot be flattened: {error}") from None
        ensure_equal(restored, one, f"the state of {what} does not survive flattening")


def resumable(make: Factory) -> None:
    """Stopping, writing, reading and going on equals not stopping, though sites went on while the server stopped."""
    want, method = reference(make).state, make()
    several = len({left.request for left in reference(make).minutes[-1]["left"]}) > 1
    federation = simulator(method)
    state, shelf = start(method, federation.clients, toy.shared(method)), Shelf()
    for number in range(ROUNDS):
        if number == ROUNDS - 1:
            method, slots = make(), federation.slots
            federation, state = simulator(method), across(state)
            federation.slots = {name: across(kept) for name, kept in slots.items()}
            shelf = Shelf({entry: across(put) for entry, put in shelf.entries.items()})
        now = Round(number, ROUNDS, federation.clients, federation.clients, shelf=shelf)
        if number == ROUNDS - 1 and (several or shelf.entries):  # the server stops before it has written this round
            play(method, state, now, federation, toy.gate(method))
        state, _ = play(method, state, now, federation, toy.gate(method))
    ensure_equal(state, want, "a run that was stopped and resumed gives other numbers")


def portable(make: Factory) -> None:
    """Bytes on a wire, answers in any order: the same numbers as in one process."""
    want, method = reference(make).state, make()
    got = simulate(method, federation=Wire(simulator(method)))[0]
    ensure_equal(got, want, "sent as bytes, in another order, the run gives other numbers")


def symmetric(make: Factory) -> None:
    """The order of the clients does not matter, but for rounding."""
    got = simulate(backwards(make()))[0]
    ensure_close(got, reference(make).state, "with replies in the opposite order the run gives other numbers")


def summable(make: Factory) -> None:
    """A server that says it needs sums alone ends at the same, but for rounding, if each reply is the mean of all."""
    if not make().sums:
        return
    for even in (False, True):
        with suppress(LawBroken, LookupError):  # a weighting may look for a reply where nothing is
            return ensure_close(simulate(blended(make(), even))[0], reference(make).state, "other numbers")
    raise LawBroken("it says that it needs sums alone, but without single replies the run gives other numbers")


def sampled(make: Factory) -> None:
    """Rounds that ask some of the sites, one of which may fail, go on and are as deterministic."""
    if make().pooled:  # one site: there are no others to go on with
        return
    clients, rounds = tuple(sorted(toy.SIZES)), 4
    late = next(number for number in range(2, rounds) if FAULTY in participants(clients, 2, 0, number))

    def some(wire: bool) -> Tree:
        method = make()
        federation: Federation = Faulty(simulator(method), FAULTY, late, "stalls")
        return simulate(method, rounds, Wire(federation) if wire else federation, asked=2, quorum=1)[0]

    try:
        ensure_equal(some(wire=True), some(wire=False), "with some sites a round, another order gives other numbers")
        simulate(make(), rounds, asked=1)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise LawBroken(f"a round with some of the sites ends in {type(error).__name__}: {error}") from error


def pure(make: Factory) -> None:
    """A handler changes nothing that it was given."""
    method = make()
    simulate(method, federation=_Watchful(method.client, toy.sites(method)))


def declared(make: Factory) -> None:
    """What leaves a site is what the method declares, all of it and nothing else."""
    method = make()
    try:
        minutes = reference(make).minutes
    except FederationError as error:
        raise LawBroken(f"its replies were refused: {error}") from error
    sent = {(left.request, left.name) for happened in minutes for left in happened["left"]}
    promised = {(kind, name) for kind, names in method.sends.items() for name in names}
    if any(len({left[:3] for left in happened["left"]}) < len(happened["left"]) for happened in minutes):
        raise LawBroken("a site is asked for the same thing twice in a round, which nobody reckons with")
    if sent != promised:
        raise LawBroken(f"declared, but never sent: {sorted(promised - sent)}")


def fault_tolerant(make: Factory, faults: Sequence[Fault] = FAULTS) -> None:
    """A site that fails, answers late or answers nonsense changes nothing beyond its own absence."""
    if make().pooled:
        return
    before, asked = _Midway(make), {left.request for left in reference(make).minutes[1]["left"]}
    for kind in make().sends:  # of request: a site may go wrong in a later phase of a round, too
        number = 1 if kind in asked else 0  # what is asked once, is asked in the first round
        want = before.with_fault("absent", kind, number)
        for fault in faults:
            got = before.with_fault(fault, kind, number)
            ensure_equal(got, want, f"a site that {fault} in round {number} changes more than its absence would")


def reestimable(make: Factory) -> None:
    """Re-estimated BatchNorm statistics do not depend on where or in which order sites measure; all else stays."""
    ensure_reestimable(make())


def alive(make: Factory, against: Sequence[Factory] = ()) -> None:
    """At its defaults a method differs from FedAvg, weighted and not (a wrapper: from what it wraps, likewise)."""
    ours = reference(make).state["server"]["model"]["params"]
    for theirs in [params for base in against or (_plain(make),) for params in _rivals(base)]:
        gap = tree.sub(ours, theirs)
        if float(tree.dot(gap, gap).sqrt()) <= 1e-5 * float(tree.dot(theirs, theirs).sqrt()):
            raise LawBroken("after three rounds its model is that of plain averaging: does it do anything?")


LAWS: dict[str, Law] = {
    law.__name__: law
    for law in (
        deterministic,
        storable,
        resumable,
        portable,
        symmetric,
        summable,
        sampled,
        pure,
        declared,
        fault_tolerant,
        reestimable,
    )
}


def check(make: Factory, against: Sequence[Factory] = (), laws: Mapping[str, Law] = LAWS) -> None:
    """Hold a method to every law; raises `LawBroken` at the first it breaks."""
    every: dict[str, Law] = {**laws, "alive": partial(alive, against=against)}
    for name, law in every.items():
        try:
            law(make)
        except LawBroken as broken:
            raise LawBroken(f"{name}: {broken}") from None


def _plain(make: Factory) -> Factory:
    """What makes FedAvg, on the method's own network if that is another than the task's."""
    method = make()
    own, usual = (tree.flatten(toy.shared(one)["model"]["params"]) for one in (method, fedavg()))
    same = own.keys() == usual.keys() and all(own[name].shape == usual[name].shape for name in own)
    return fedavg if same else lambda: replace(fedavg(), networks=method.networks)


@lru_cache(maxsize=64)
def _rivals(base: Factory) -> list[Tree]:
    """What becomes of a method's model under each plain weighting, played once for all that are compared with it."""
    method = base()
    weighted = [replace(method, weighting=rule) for rule in (by_size, uniform) if method.weighting]
    return [simulate(one)[0]["server"]["model"]["params"] for one in (method, *weighted)]


class _Midway:
    """A run before its first round and after it, from where one can go on again and again."""

    def __init__(self, make: Factory) -> None:
        method, self.make = make(), make
        federation, self.gate = simulator(method), toy.gate(method)
        fresh = start(method, federation.clients, toy.shared(method))
        self.held, shelf = [(fresh, dict(federation.slots), Shelf())], Shelf()
        self.held.append((self._play(0, method, fresh, federation, shelf), federation.slots, shelf))
        self.heard: dict[bytes, tuple[Reply, Tree]] = {}

    def with_fault(self, fault: Fault, kind: str, first: int) -> Tree:
        """A round with a fault and the next without."""
        method, (state, slots, shelf) = self.make(), self.held[first]
        federation = Remembering(method.client, toy.sites(method), self.heard)
        federation.slots, shelf = dict(slots), Shelf(dict(shelf.entries))
        for number in (first, first + 1):
            state = self._play(number, method, state, Faulty(federation, FAULTY, first, fault, kind), shelf)
        return {"state": state, "slots": federation.slots}

    def _play(self, number: int, method: Method, state: Tree, federation: Federation, shelf: Shelf) -> Tree:
        now = Round(number, ROUNDS, federation.clients, federation.clients, shelf=shelf)
        return play(method, state, now, federation, self.gate)[0]


class _Watchful(Simulator):
    """A simulator that looks whether a site's handlers keep their hands off what they were given."""

    def ask(self, request: Request, post: Post) -> dict[str, Reply | Failure]:
        return dict(self._watched(request, post))

    def _watched(self, request: Request, post: Post) -> Iterator[tuple[str, Reply]]:
        for name in request.to:
            before = deepcopy({"received": request.body, "private": self.slots[name]})
            reply, slots = answer(self.client, self.sites[name], self.slots[name], request, post)
            after = {"received": request.body, "private": self.slots[name]}
            ensure_equal(after, before, f"the handler of {request.kind!r} changed what it was given")
            self.slots[name] = slots
            yield name, reply
