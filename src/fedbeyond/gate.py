"""What a reply must look like before a method may see it, and the ledger of what left each site.

A federation's averages are only as sound as its worst reply: one NaN, one wrong shape that broadcasts, one claim of
a trillion samples and the model is gone. So nothing reaches a method but what the method declared, from who was
asked, in numbers that are finite and of a plausible size; the rest is set aside with the site's name and the reason.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median_low
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import tree
from .errors import FederationError
from .method import Sends
from .server import Reply, Request
from .tree import Tree

PARAMETERS_TIMES, OTHERS_TIMES = 10.0, 100.0  # how far from the peers' median a size may lie


class Failure(NamedTuple):
    """No usable answer from a client, and why."""

    client: str
    reason: str
    error: Exception | None = None


class Left(NamedTuple):
    """One line of the ledger: what left a site."""

    client: str
    request: str
    name: str
    kind: str
    bytes: int


class Verdict(NamedTuple):
    """The replies a method may see, sorted by client; those set aside; and all that left, either way."""

    replies: list[Reply]
    aside: list[Failure]
    ledger: list[Left]


@dataclass(frozen=True)
class Gate:
    """Admits the replies of sites that enrolled with a number of training images each."""

    sends: Sends
    nets: Tree  # the shared networks at the start: what replies are compared with
    enrolled: Mapping[str, int]
    quorum: int | None = None  # None: all but one of those asked, at least two; one if only one was asked

    def admit(self, request: Request, answers: Mapping[str, Reply | Failure]) -> Verdict:
        """Sort the answers, given by the client that was asked, into usable and not."""
        declared = self.sends.get(request.kind, {})
        example = {name: sent.like(self.nets, request.body) for name, sent in declared.items()}
        sound: dict[str, Reply] = {}
        aside: list[Failure] = []
        ledger: list[Left] = []
        for client in sorted({*request.to, *answers}):
            answer = answers.get(client, Failure(client, "did not answer"))
            if not isinstance(answer, Reply):
                aside.append(answer if isinstance(answer, Failure) else Failure(client, "sent no reply"))
                continue
            ledger += self._entries(client, request.kind, answer)
            reason = self._complaint(client, answer, request, example)
            if reason:
                aside.append(Failure(client, reason))
            else:
                sound[client] = answer
        for client, reason in _implausible(sound):
            aside.append(Failure(client, reason))
            del sound[client]
        self._require_quorum(request, len(sound), aside)
        return Verdict(list(sound.values()), aside, ledger)

    def _complaint(self, client: str, reply: Reply, request: Request, example: Tree) -> str | None:
        if client not in request.to or client not in self.enrolled:
            return "answered though it was not asked"
        if reply.client != client:
            return f"answered in the name of {reply.client!r}"
        if type(reply.weight) not in (int, float) or reply.weight != self.enrolled[client]:
            return f"claims {reply.weight!r} training images, enrolled with {self.enrolled[client]}"
        return next(_differences(reply.body, example, ""), None)

    def _entries(self, client: str, kind: str, reply: Reply) -> Iterator[Left]:
        declared = self.sends.get(kind, {})
        for name, part in reply.body.items() if isinstance(reply.body, dict) else [("body", reply.body)]:
            what = declared[name].kind if name in declared else "undeclared"
            yield Left(client, kind, str(name), what, _bytes(part))

    def _require_quorum(self, request: Request, usable: int, aside: list[Failure]) -> None:
        asked = len(request.to)
        needed = self.quorum or (max(2, asked - 1) if asked > 1 else 1)
        if usable < min(needed, asked):
            reasons = "; ".join(f"{failure.client}: {failure.reason}" for failure in aside)
            raise FederationError(
                f"only {usable} of {asked} sites gave a usable answer to {request.kind!r}, "
                f"{min(needed, asked)} are needed ({reasons}); mend the sites or lower train.quorum"
            ) from next((failure.error for failure in aside if failure.error), None)


def _bytes(node: Any) -> int:
    if isinstance(node, dict):
        return sum(_bytes(child) for child in node.values())
    return node.numel() * node.element_size() if isinstance(node, Tensor) else 0


def _differences(given: Any, expected: Any, path: str) -> Iterator[str]:
    """Where `given` is not a finite tree of the shape of `expected`."""
    where = path.strip("/") or "the reply"
    if isinstance(expected, dict):
        if not isinstance(given, dict):
            yield f"{where} is a {type(given).__name__}, not a tree"
        elif given.keys() != expected.keys():
            extra = sorted(str(key) for key in given.keys() - expected.keys())
            missing = sorted(expected.keys() - given.keys())
            yield f"{where} has undeclared {extra}" if extra else f"{where} lacks {missing}"
        else:
            for key in expected:
                yield from _differences(given[key], expected[key], f"{path}/{key}")
    elif type(given) is not Tensor:
        yield f"{where} is a {type(given).__name__}, not a tensor"
    elif given.layout != torch.strided or given.requires_grad:
        yield f"{where} is not a plain dense tensor"
    elif (given.dtype, given.shape) != (expected.dtype, expected.shape):
        yield (
            f"{where} is {given.dtype} of shape {tuple(given.shape)}, "
            f"declared is {expected.dtype} of shape {tuple(expected.shape)}"
        )
    elif given.is_floating_point() and not math.isfinite(_norm(given)):
        yield f"{where} has numbers that are not finite (did its training diverge? a smaller lr may help)"
    elif not given.is_floating_point() and bool((given < 0).any()):
        yield f"{where} has a negative count"


def _implausible(replies: Mapping[str, Reply]) -> list[tuple[str, str]]:
    """The replies whose size is far from that of their peers."""
    sizes = {client: dict(_sizes(reply.body)) for client, reply in replies.items()}
    odd: dict[str, str] = {}
    for client, own in sizes.items() if len(sizes) > 1 else ():
        for group, norm in own.items():
            peers = [sizes[peer][group] for peer in sizes if len(sizes) > 2 or peer != client]
            middle = median_low(peers)
            bound = PARAMETERS_TIMES if group.endswith("/params") else OTHERS_TIMES
            low = middle / bound if group.endswith("/params") else 0.0
            if middle > 0 and not low <= norm <= middle * bound:
                odd.setdefault(client, f"the size of {group} is {norm:.3g}, that of its peers {middle:.3g}")
    return list(odd.items())


def _sizes(body: Tree) -> Iterator[tuple[str, float]]:
    """Norms of what a reply holds, by group: parameters, buffers, counters. Scalars have no usual size."""
    for name, part in body.items():
        for key, child in part.items() if isinstance(part, dict) else ():
            found = tree.leaves(child)
            for group, leaves in (
                (f"{name}/{key}", [leaf for leaf in found if leaf.is_floating_point()]),
                (f"{name}/{key} counters", [leaf for leaf in found if not leaf.is_floating_point()]),
            ):
                if leaves:
                    yield group, math.hypot(*(_norm(leaf) for leaf in leaves))


def _norm(leaf: Tensor) -> float:
    """Finite if and only if all numbers are: where squares overflow, they are summed in doubles."""
    if not leaf.is_floating_point():
        return float(torch.linalg.vector_norm(leaf.double()))
    norm = float(torch.linalg.vector_norm(leaf))
    return norm if math.isfinite(norm) else float(torch.linalg.vector_norm(leaf, dtype=torch.float64))
