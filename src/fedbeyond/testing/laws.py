"""The laws that every method and every composition obeys; check your own method with `check_method`.

A law takes a function that returns the method, to detect state outside its trees, and raises `LawBroken` with a reason.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch

from .. import tree
from .._method import Method
from ..classifier import Task
from ..engine.protocol import Federation
from ..engine.rounds import participants, play, start
from ..engine.simulator import Simulator
from ..errors import FederationError
from ..methods.fedavg import fedavg
from ..server import ModelStore, Reply, Round, by_size, uniform
from ..tree import Tree
from . import toy
from .compare import LawBroken, ensure_close, ensure_equal, rejection
from .faults import FAULTS, FAULTY, Fault, Faulty, Wire, through_bytes
from .network_use import ensure_needs, recording
from .reordered import with_mean_replies, with_reversed_replies
from .simulators import CachingSimulator, PuritySimulator, RecordingSimulator, recording_round, recording_site
from .statistics import ensure_reestimable
from .toy import simulator

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
    make_round: type[Round] = Round,
    task: Task | None = None,
) -> tuple[Tree, list[dict[str, Any]]]:
    """Run a few rounds on the toy sites, all or `asked` of them per round; return the last state and the round log."""
    federation = federation or Simulator(method.client, toy.sites(method, sizes, task))
    clients, gate, round_log, store = federation.clients, toy.gate(method, sizes, quorum, task), [], ModelStore()
    state = start(method, clients, toy.shared(method, task))
    for number in range(rounds):
        now = make_round(number, rounds, participants(clients, asked, 0, number), clients, store=store)
        state, record = play(method, state, now, federation, gate)
        round_log.append(record)
    return state, round_log


class Reference(NamedTuple):
    """A run without faults, to compare others with."""

    state: Tree
    round_log: list[dict[str, Any]]
    client_states: Tree
    kept: Set[str]  # names of the entries of the sites' private states
    reads: Set[str]  # where the method read the total number of rounds
    uses: Set[str]  # what it used of its network beyond logits
    method: Method


@lru_cache(maxsize=16)
def reference(make: Factory) -> Reference:
    """Run a method without faults, once for all its laws."""
    method, reads, uses = make(), set[str](), set[str]()
    federation = RecordingSimulator(method.client, toy.sites(method, task=recording(uses), make=recording_site(reads)))
    state, round_log = simulate(method, federation=federation, make_round=recording_round(reads))
    return Reference(state, round_log, federation.client_states, federation.kept, reads, uses, method)


def deterministic(make: Factory) -> None:
    """Require that two runs with one seed are bitwise equal, also if the method has been used before."""
    first = reference(make).state
    ensure_equal(first, simulate(reference(make).method)[0], "a second run of the same method gives different numbers")
    if not all(bool(torch.isfinite(leaf).all()) for leaf in tree.leaves(first)):
        raise LawBroken("the state has numbers that are not finite")


def storable(make: Factory) -> None:
    """Require that states are trees that files and messages can hold: flatten and restore gives the same tree."""
    for owner, owned in (("server", reference(make).state), *reference(make).client_states.items()):
        try:
            restored = tree.unflatten(tree.flatten(owned))
        except (AttributeError, TypeError, ValueError) as error:
            raise LawBroken(f"the state of {owner} cannot be flattened: {error}") from None
        ensure_equal(restored, owned, f"the state of {owner} changes when it is flattened and restored")


def resumable(make: Factory) -> None:
    """Require that a resumed run equals an uninterrupted one, also if the server stopped in the middle of a round."""
    want, method = reference(make).state, make()
    several = len({entry.request for entry in reference(make).round_log[-1]["ledger"]}) > 1
    federation = simulator(method)
    state, store = start(method, federation.clients, toy.shared(method)), ModelStore()
    for number in range(ROUNDS):
        if number == ROUNDS - 1:
            method, client_states = make(), federation.client_states
            federation, state = simulator(method), through_bytes(state)
            federation.client_states = {name: through_bytes(owned) for name, owned in client_states.items()}
            store = ModelStore({entry: through_bytes(stored) for entry, stored in store.entries.items()})
        now = Round(number, ROUNDS, federation.clients, federation.clients, store=store)
        if number == ROUNDS - 1 and (several or store.entries):  # the server stops before it saves this round
            play(method, state, now, federation, toy.gate(method))
        state, _ = play(method, state, now, federation, toy.gate(method))
    ensure_equal(state, want, "a run that was stopped and resumed gives different numbers")


def portable(make: Factory) -> None:
    """Require that a run with messages as bytes, in any order, equals a run in one process."""
    want, method = reference(make).state, make()
    got = simulate(method, federation=Wire(simulator(method)))[0]
    ensure_equal(got, want, "sent as bytes, in another order, the run gives different numbers")


def symmetric(make: Factory) -> None:
    """Require that the order of the clients does not matter, up to rounding."""
    got = simulate(with_reversed_replies(make()))[0]
    ensure_close(got, reference(make).state, "with replies in reverse order the run gives different numbers")


def summable(make: Factory) -> None:
    """Require of `linear_aggregation` the same result, up to rounding, if each reply is the mean of all replies."""
    if not make().linear_aggregation:
        return
    for even in (False, True):
        with suppress(LawBroken, LookupError):  # a weighting may need an entry that the empty replies lack
            return ensure_close(simulate(with_mean_replies(make(), even))[0], reference(make).state, "different")
    raise LawBroken("it declares linear_aggregation, but without single replies the run gives different numbers")


def sampled(make: Factory) -> None:
    """Require that rounds with some of the sites, one of which may fail, complete and are deterministic."""
    if make().pooled:  # there is only one site
        return
    clients, rounds = tuple(sorted(toy.SIZES)), 4
    late = next(number for number in range(2, rounds) if FAULTY in participants(clients, 2, 0, number))

    def run(wire: bool) -> Tree:
        method = make()
        federation: Federation = Faulty(simulator(method), FAULTY, late, "stalls")
        return simulate(method, rounds, Wire(federation) if wire else federation, asked=2, quorum=1)[0]

    try:
        ensure_equal(run(wire=True), run(wire=False), "with some sites a round, another order gives different numbers")
        simulate(make(), rounds, asked=1)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise LawBroken(f"a round with some of the sites raises {type(error).__name__}: {error}") from error


def pure(make: Factory) -> None:
    """Require that a handler does not change its arguments."""
    method = make()
    simulate(method, federation=PuritySimulator(method.client, toy.sites(method)))


def declared(make: Factory) -> None:
    """Require that exactly what is declared leaves a site, stays there, is read (`uses_total`) and used (`needs`)."""
    method = make()
    try:
        round_log = reference(make).round_log
    except FederationError as error:
        raise LawBroken(rejection(error)) from error
    sent = {(entry.request, entry.name) for record in round_log for entry in record["ledger"]}
    expected = {(kind, name) for kind, names in method.sends.items() for name in names}
    if any(len({entry[:3] for entry in record["ledger"]}) < len(record["ledger"]) for record in round_log):
        raise LawBroken("a site receives the same kind of request twice in a round, which is not supported")
    if sent != expected:
        raise LawBroken(f"declared, but never sent: {sorted(expected - sent)}")
    kept, names = reference(make).kept, f"{sorted(reference(make).kept)}, and keeps declares {sorted(method.keeps)}"
    if kept - method.keeps:
        raise LawBroken(
            f"a site's private state has {names}: declare {sorted(kept - method.keeps)} with Method(keeps={{...}}), or "
            "in a wrapper with replace(method, keeps=method.keeps | {...})"
        )
    if method.keeps - kept:
        raise LawBroken(
            f"in {ROUNDS} rounds a site's private state had {names}: remove {sorted(method.keeps - kept)} from keeps, "
            "or return it from the initial state or a handler"
        )
    if reference(make).reads and not method.uses_total:
        raise LawBroken(
            f"it reads {', '.join(sorted(reference(make).reads))}, so that its rounds depend on how many there are: "
            'declare the option with Method(uses_total={"name(option=value)"}), or in a wrapper with '
            "replace(method, uses_total=method.uses_total | {...})"
        )
    if method.uses_total and not reference(make).reads:
        raise LawBroken(
            f"uses_total declares {sorted(method.uses_total)}, but in {ROUNDS} rounds it reads neither Round.total nor "
            "Site.rounds: leave it out"
        )
    ensure_needs(method, reference(make).uses, lambda: simulate(method, 1, task=toy.LOGITS_ONLY))


def fault_tolerant(make: Factory, faults: Sequence[Fault] = FAULTS) -> None:
    """Require that a faulty site (error, timeout, unusable reply) has the same effect as an absent site."""
    if make().pooled:
        return
    starts, requested = _StartingPoints(make), {entry.request for entry in reference(make).round_log[1]["ledger"]}
    for kind in make().sends:  # a site may also fail in a later phase of a round
        number = 1 if kind in requested else 0  # a kind that is requested once is requested in the first round
        want = starts.with_fault("absent", kind, number)
        for fault in faults:
            got = starts.with_fault(fault, kind, number)
            ensure_equal(got, want, f"a faulty site ({fault}) in round {number} changes more than its absence would")


def reestimable(make: Factory) -> None:
    """Require that re-estimation changes only running statistics, independent of place and order of measurement."""
    ensure_reestimable(make())


def alive(make: Factory, against: Sequence[Factory] = ()) -> None:
    """Require that a method at its defaults differs from FedAvg (a wrapper: from what it wraps), weighted or not."""
    ours = reference(make).state["server"]["model"]["params"]
    for theirs in [params for base in against or (_baseline(make),) for params in _baseline_params(base)]:
        gap = tree.sub(ours, theirs)
        if float(tree.dot(gap, gap).sqrt()) <= 1e-5 * float(tree.dot(theirs, theirs).sqrt()):
            raise LawBroken("after three rounds its model equals that of plain averaging: the method has no effect")


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


@toy.one_thread()
def check_method(make: Factory, against: Sequence[Factory] = (), laws: Mapping[str, Law] = LAWS) -> None:
    """Check a method against every law; raise `LawBroken` at the first law it breaks."""
    all_laws: dict[str, Law] = {**laws, "alive": partial(alive, against=against)}
    make = partial(make)  # a new function: nothing cached by an earlier check is used
    for name, law in all_laws.items():
        try:
            law(make)
        except LawBroken as broken:
            raise LawBroken(f"{name}: {broken}") from None
        except FederationError as error:
            raise LawBroken(f"{name}: {rejection(error)}") from error


def _baseline(make: Factory) -> Factory:
    """Return a factory of FedAvg, with the method's networks if they differ from the task's."""
    method = make()
    ours, usual = (tree.flatten(toy.shared(each)["model"]["params"]) for each in (method, fedavg()))
    same = ours.keys() == usual.keys() and all(ours[name].shape == usual[name].shape for name in ours)
    return fedavg if same else lambda: replace(fedavg(), networks=method.networks)


@lru_cache(maxsize=64)
def _baseline_params(base: Factory) -> list[Tree]:
    """Return the trained parameters of a method with its own and with each plain weighting; cached."""
    method = base()
    weighted = [replace(method, weighting=rule) for rule in (by_size, uniform) if method.weighting]
    return [simulate(each)[0]["server"]["model"]["params"] for each in (method, *weighted)]


class _StartingPoints:
    """The states of a run before and after its first round, from which runs with faults can start."""

    def __init__(self, make: Factory) -> None:
        method, self.make = make(), make
        federation, self.gate = simulator(method), toy.gate(method)
        initial = start(method, federation.clients, toy.shared(method))
        self.states, store = [(initial, dict(federation.client_states), ModelStore())], ModelStore()
        self.states.append((self._play(0, method, initial, federation, store), federation.client_states, store))
        self.cache: dict[bytes, tuple[Reply, Tree]] = {}

    def with_fault(self, fault: Fault, kind: str, first: int) -> Tree:
        """Run round `first` with a fault and the next round without; return all states."""
        method, (state, client_states, store) = self.make(), self.states[first]
        federation = CachingSimulator(method.client, toy.sites(method), self.cache)
        federation.client_states, store = dict(client_states), ModelStore(dict(store.entries))
        for number in (first, first + 1):
            state = self._play(number, method, state, Faulty(federation, FAULTY, first, fault, kind), store)
        return {"state": state, "clients": federation.client_states}

    def _play(self, number: int, method: Method, state: Tree, federation: Federation, store: ModelStore) -> Tree:
        now = Round(number, ROUNDS, federation.clients, federation.clients, store=store)
        return play(method, state, now, federation, self.gate)[0]
