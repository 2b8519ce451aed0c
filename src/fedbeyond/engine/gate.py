"""The gate checks every reply before a method sees it, and keeps the ledger of what left each site.

One NaN, one wrong shape that broadcasts or one claim of a trillion samples would ruin an average. A method therefore
sees only what it declared, from clients that were asked, in numbers that are finite and of a plausible size.
Everything else is rejected, with the site's name and the reason.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median_low
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import tree
from .._method import Sends, Sent, starting_point
from ..errors import FederationError, printable
from ..server import MAX_WEIGHT, Failure, Reply, Request
from ..tree import Tree

# factors by which a norm may differ from the median of the peers
PARAMETERS_TIMES, OTHERS_TIMES, POSITIVE_TIMES = 10.0, 100.0, 1000.0
MAX_STEPS = 10**7  # batches that a counter may grow by in one reply; 10^5 such replies are still below MAX_WEIGHT


class LedgerEntry(NamedTuple):
    """One entry of the ledger: something that left a site."""

    client: str
    request: str
    name: str
    kind: str
    numbers: int
    bytes: int


class Verdict(NamedTuple):
    """The admitted replies, sorted by client; the rejected ones; and the ledger of both."""

    replies: list[Reply]
    rejected: list[Failure]
    ledger: list[LedgerEntry]


Answers = Mapping[str, Reply | Failure] | Iterator[tuple[str, Reply | Failure]]  # a stream has the order of the request
Sizes = Mapping[str, tuple[float, float, float]]  # name -> norm, and how far above and below its peers it may be


@dataclass(frozen=True)
class Gate:
    """Admits replies of enrolled sites that have the declared form, finite numbers and a plausible size."""

    sends: Sends
    nets: Tree  # the shapes of the shared networks, which replies must have
    enrolled: Mapping[str, int]  # the number of training images of each site
    quorum: int | None = None  # None: all but one of those asked, at least two; one if only one was asked

    def admit(
        self, request: Request, answers: Answers, keep: Callable[[Reply], Reply] = lambda reply: reply
    ) -> Verdict:
        """Split replies, by the client that was asked, into admitted and rejected; `keep` reduces an admitted one."""
        declared, example = self.sends.get(request.kind, {}), self.example(request)
        admitted: dict[str, Reply] = {}
        sizes: dict[str, Sizes] = {}
        rejected: list[Failure] = []
        ledger: list[LedgerEntry] = []
        if isinstance(answers, Mapping):
            everybody = {client: Failure(client, "sent no reply") for client in request.to} | {**answers}
            answers = iter(sorted(everybody.items()))
        for client, reply in answers:
            if not isinstance(reply, Reply):
                failure = reply if isinstance(reply, Failure) else Failure(client, "sent no reply")
                rejected.append(failure._replace(reason=printable(failure.reason)))
                continue
            ledger += self._entries(client, request.kind, reply)
            reason = self._fault(client, reply, request, example)
            norms = {} if reason else dict(_norms(reply.body, declared))
            if not all(math.isfinite(norm) for norm, _, _ in norms.values()):
                where = next(path for path, leaf in tree.flatten(reply.body).items() if not finite(leaf))
                reason = f"{where} has numbers that are not finite (did its training diverge? a smaller lr may help)"
            if reason:
                rejected.append(Failure(client, printable(reason), _undeclared(reply.body, declared)))
            else:
                sizes[client], admitted[client] = norms, keep(reply)
            del reply  # frees its memory while the next one is computed
        for client, reason in _implausible(sizes):
            rejected.append(Failure(client, reason))
            del admitted[client]
        self._ensure_quorum(request, len(admitted), rejected)
        return Verdict(list(admitted.values()), rejected, ledger)

    def example(self, request: Request) -> Tree:
        """Return a tree with the keys, shapes and dtypes that a reply must have."""
        declared = self.sends.get(request.kind, {})
        return {name: sent.like(self.nets, request.body) for name, sent in declared.items()}

    def _fault(self, client: str, reply: Reply, request: Request, example: Tree) -> str | None:
        """Return why a reply cannot be used; None if it can."""
        if client not in request.to or client not in self.enrolled:
            return "replied though it was not asked"
        if reply.client != client:
            return f"replied in the name of {reply.client!r}"
        if type(reply.weight) not in (int, float) or reply.weight != self.enrolled[client]:
            return f"claims {reply.weight!r} training images, enrolled with {self.enrolled[client]}"
        reason = next(differences(reply.body, example, ""), None)
        for name, sent in self.sends.get(request.kind, {}).items():
            leaves = [] if reason else tree.leaves(reply.body[name])
            low, high = sent.within or (-math.inf, math.inf)
            if sent.positive and any(bool((leaf <= 0).any()) for leaf in leaves):
                reason = f"{name} is not positive"
            elif sent.within and any(bool(((leaf < low) | (leaf > high)).any()) for leaf in leaves):
                reason = f"{name} is not in the range from {low:g} to {high:g}"
        return reason or next(self._impossible(reply.body, request), None)

    def _impossible(self, body: Tree, request: Request) -> Iterator[str]:
        """Yield which buffers of a reply no training can give: they would spoil the model of every other site.

        The mean of counters is the largest, and BatchNorm takes the square root of a variance.
        """
        flat, declared = tree.flatten(body), self.sends.get(request.kind, {})
        start = tree.flatten({name: starting_point(request.body, sent.since) for name, sent in declared.items()})
        for path, leaf in flat.items():
            layer = path.removesuffix("running_var")
            if layer != path and f"{layer}running_mean" in flat and bool((leaf < 0).any()):
                yield f"{path} has a negative variance"
            is_counter = path in start and not leaf.is_floating_point() and leaf.shape == start[path].shape
            if is_counter and bool((leaf.long() - start[path].long() > MAX_STEPS).any()):
                yield f"{path} grew by more than {MAX_STEPS} batches in one round"

    def _entries(self, client: str, kind: str, reply: Reply) -> Iterator[LedgerEntry]:
        declared = self.sends.get(kind, {})
        body = reply.body if isinstance(reply.body, dict) else {"body": reply.body}
        for name, part in body.items():
            if name in declared:
                yield LedgerEntry(client, kind, name, declared[name].kind, *_extent(part))
        others = {name: part for name, part in body.items() if name not in declared}
        if others:  # their names are the site's choice: they are counted, not copied
            yield LedgerEntry(client, kind, f"{len(others)} undeclared", "undeclared", *_extent(others))

    def _ensure_quorum(self, request: Request, usable: int, rejected: list[Failure]) -> None:
        asked = len(request.to)
        usual = self.quorum or (max(2, asked - 1) if asked > 1 else 1)
        needed = usual if request.quorum is None else request.quorum
        if usable < min(needed, asked):
            by_reason: dict[str, list[str]] = {}
            for failure in rejected:
                by_reason.setdefault(failure.reason, []).append(failure.client)
            reasons = "; ".join(f"{', '.join(clients)}: {reason}" for reason, clients in by_reason.items())
            raise FederationError(
                f"only {usable} of {asked} sites gave a valid reply to {request.kind!r}, "
                f"{min(needed, asked)} are needed ({reasons}); fix the sites, or lower train.quorum"
            ) from next((failure.error for failure in rejected if failure.error), None)


def _extent(node: Any) -> tuple[int, int]:
    """Return how many numbers and bytes a reply has, however malformed or deep it is."""
    numbers, size, todo = 0, 0, [node]
    while todo:
        node = todo.pop()
        if isinstance(node, dict):
            todo += node.values()
        elif isinstance(node, Tensor):
            numbers, size = numbers + node.numel(), size + node.numel() * node.element_size()
    return numbers, size


def differences(given: Any, expected: Any, path: str) -> Iterator[str]:
    """Yield where `given` is not a tree of the shape of `expected`."""
    where = path.strip("/") or "the reply"
    if isinstance(expected, dict):
        if not isinstance(given, dict):
            yield f"{where} is a {type(given).__name__}, not a tree"
        elif given.keys() != expected.keys():
            extra = len(given.keys() - expected.keys())
            missing = sorted(expected.keys() - given.keys())
            entries = "entry" if extra == 1 else "entries"
            yield f"{where} has {extra} undeclared {entries}" if extra else f"{where} lacks {missing}"
        else:
            for key in expected:
                yield from differences(given[key], expected[key], f"{path}/{key}")
    elif type(given) is not Tensor:
        yield f"{where} is a {type(given).__name__}, not a tensor"
    elif given.layout != torch.strided or given.requires_grad:
        yield f"{where} is not a plain dense tensor"
    elif (given.dtype, given.shape) != (expected.dtype, expected.shape):
        yield (
            f"{where} is {given.dtype} of shape {tuple(given.shape)}, "
            f"declared is {expected.dtype} of shape {tuple(expected.shape)}"
        )
    elif not given.is_floating_point() and not bool(((given >= 0) & (given <= MAX_WEIGHT)).all()):
        yield f"{where} is not a plausible count"


def _undeclared(body: Any, declared: Mapping[str, Sent]) -> FederationError | None:
    """Return an error with the undeclared names of a reply, for the author of a method; results do not hold it."""
    names = sorted(str(name) for name in body if name not in declared) if isinstance(body, dict) else []
    return FederationError(printable(f"undeclared: {', '.join(names)}")) if names else None


def _implausible(sizes: Mapping[str, Sizes]) -> list[tuple[str, str]]:
    """Return the clients whose norms differ too much from those of their peers, with the reason."""
    odd: dict[str, str] = {}
    for client, own in sizes.items() if len(sizes) > 1 else ():
        for group, (norm, above, below) in own.items():
            middle = median_low([sizes[peer][group][0] for peer in sizes if len(sizes) > 2 or peer != client])
            if middle > 0 and not middle / below <= norm <= middle * above:
                odd.setdefault(client, f"the size of {group} is {norm:.3g}, that of its peers {middle:.3g}")
    return list(odd.items())


def _norms(body: Tree, declared: Mapping[str, Sent]) -> Iterator[tuple[str, tuple[float, float, float]]]:
    """Yield the norms of a reply, each with the factors by which it may be above and below the peers' median.

    Sites train from one model, so parameters stay close; buffers and statistics differ more, and may be small.
    """
    for name, part in body.items():
        if declared[name].kind == "scalars":
            times = POSITIVE_TIMES if declared[name].positive and not isinstance(part, dict) else math.inf
            yield name, (_norm_of(tree.leaves(part)), times, times)
            continue
        for key, child in part.items():
            above, below = (PARAMETERS_TIMES, PARAMETERS_TIMES) if key == "params" else (OTHERS_TIMES, math.inf)
            yield f"{name}/{key}", (_norm_of(tree.leaves(child)), above, below)


def finite(*leaves: Tensor) -> bool:
    """Return whether all numbers of tensors are finite, without copying them."""
    return math.isfinite(_norm_of(leaves))


def _norm_of(leaves: Iterable[Tensor]) -> float:
    """Return the norm of all floating-point tensors together."""
    floats = [leaf for leaf in leaves if leaf.is_floating_point()]
    if len({(leaf.dtype, leaf.device) for leaf in floats}) == 1:  # all at once
        norm = math.hypot(*torch.stack(torch._foreach_norm(floats)).tolist())
        if math.isfinite(norm):
            return norm
    return math.hypot(*map(_norm, floats))


def _norm(leaf: Tensor) -> float:
    """Return a norm that is finite if and only if all numbers are; squares that overflow are summed in double."""
    norm = float(torch.linalg.vector_norm(leaf))
    return norm if math.isfinite(norm) else float(torch.linalg.vector_norm(leaf, dtype=torch.float64))
