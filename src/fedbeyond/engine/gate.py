"""What a reply must look like before a method may see it, and the ledger of what left each site.

A federation's averages are only as sound as its worst reply: one NaN, one wrong shape that broadcasts, one claim of
a trillion samples and the model is gone. So nothing reaches a method but what the method declared, from who was
asked, in numbers that are finite and of a plausible size; the rest is set aside with the site's name and the reason.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median_low
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import tree
from ..errors import FederationError
from ..method import Sends, Sent
from ..server import MAX_WEIGHT, Failure, Reply, Request
from ..tree import Tree

# how many times the peers' median a size may be
PARAMETERS_TIMES, OTHERS_TIMES, POSITIVE_TIMES = 10.0, 100.0, 1000.0


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


Answers = Mapping[str, Reply | Failure] | Iterator[tuple[str, Reply | Failure]]  # a stream is in the request's order
Sizes = Mapping[str, tuple[float, float, float]]  # what it is of -> norm, and how far above and below peers it may be


@dataclass(frozen=True)
class Gate:
    """Admits the replies of sites that enrolled with a number of training images each."""

    sends: Sends
    nets: Tree  # the shared networks at the start: what replies are compared with
    enrolled: Mapping[str, int]
    quorum: int | None = None  # None: all but one of those asked, at least two; one if only one was asked

    def admit(
        self, request: Request, answers: Answers, keep: Callable[[Reply], Reply] = lambda reply: reply
    ) -> Verdict:
        """Sort the answers, given by the client that was asked, into usable and not; `keep` says what stays of one."""
        declared = self.sends.get(request.kind, {})
        example = {name: sent.like(self.nets, request.body) for name, sent in declared.items()}
        sound: dict[str, Reply] = {}
        sizes: dict[str, Sizes] = {}
        aside: list[Failure] = []
        ledger: list[Left] = []
        if isinstance(answers, Mapping):
            told = {client: Failure(client, "did not answer") for client in request.to} | {**answers}
            answers = iter(sorted(told.items()))
        for client, answer in answers:
            if not isinstance(answer, Reply):
                aside.append(answer if isinstance(answer, Failure) else Failure(client, "sent no reply"))
                continue
            ledger += self._entries(client, request.kind, answer)
            reason = self._complaint(client, answer, request, example)
            own = {} if reason else dict(_sizes(answer.body, declared))
            if not all(math.isfinite(norm) for norm, _, _ in own.values()):
                where = next(path for path, leaf in tree.flatten(answer.body).items() if not finite(leaf))
                reason = f"{where} has numbers that are not finite (did its training diverge? a smaller lr may help)"
            if reason:
                aside.append(Failure(client, reason))
            else:
                sizes[client], sound[client] = own, keep(answer)
            del answer  # while the next one is made
        for client, reason in _implausible(sizes):
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
        reason = next(_differences(reply.body, example, ""), None)
        for name, sent in self.sends.get(request.kind, {}).items():
            if not reason and sent.positive and any(bool((leaf <= 0).any()) for leaf in tree.leaves(reply.body[name])):
                reason = f"{name} is not positive"
        return reason

    def _entries(self, client: str, kind: str, reply: Reply) -> Iterator[Left]:
        declared = self.sends.get(kind, {})
        for name, part in reply.body.items() if isinstance(reply.body, dict) else [("body", reply.body)]:
            what = declared[name].kind if name in declared else "undeclared"
            yield Left(client, kind, str(name), what, _bytes(part))

    def _require_quorum(self, request: Request, usable: int, aside: list[Failure]) -> None:
        asked = len(request.to)
        usual = self.quorum or (max(2, asked - 1) if asked > 1 else 1)
        needed = usual if request.quorum is None else request.quorum
        if usable < min(needed, asked):
            told: dict[str, list[str]] = {}
            for failure in aside:
                told.setdefault(failure.reason, []).append(failure.client)
            reasons = "; ".join(f"{', '.join(clients)}: {reason}" for reason, clients in told.items())
            raise FederationError(
                f"only {usable} of {asked} sites gave a usable answer to {request.kind!r}, "
                f"{min(needed, asked)} are needed ({reasons}); mend the sites or lower train.quorum"
            ) from next((failure.error for failure in aside if failure.error), None)


def _bytes(node: Any) -> int:
    """What any reply weighs, however wrong or deep it is."""
    total, todo = 0, [node]
    while todo:
        node = todo.pop()
        if isinstance(node, dict):
            todo += node.values()
        elif isinstance(node, Tensor):
            total += node.numel() * node.element_size()
    return total


def _differences(given: Any, expected: Any, path: str) -> Iterator[str]:
    """Where `given` is not a tree of the shape of `expected`."""
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
    elif not given.is_floating_point() and not bool(((given >= 0) & (given <= MAX_WEIGHT)).all()):
        yield f"{where} is not a plausible count"


def _implausible(sizes: Mapping[str, Sizes]) -> list[tuple[str, str]]:
    """The clients whose reply's size is far from that of their peers."""
    odd: dict[str, str] = {}
    for client, own in sizes.items() if len(sizes) > 1 else ():
        for group, (norm, above, below) in own.items():
            middle = median_low([sizes[peer][group][0] for peer in sizes if len(sizes) > 2 or peer != client])
            if middle > 0 and not middle / below <= norm <= middle * above:
                odd.setdefault(client, f"the size of {group} is {norm:.3g}, that of its peers {middle:.3g}")
    return list(odd.items())


def _sizes(body: Tree, declared: Mapping[str, Sent]) -> Iterator[tuple[str, tuple[float, float, float]]]:
    """Norms of what a reply holds, with how many times the peers' median they may be above and below it.

    Sites train from one model, so parameters stay close; buffers and statistics differ more, and may well be small.
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
    """Whether all numbers of tensors are finite, without a copy of them."""
    return math.isfinite(_norm_of(leaves))


def _norm_of(leaves: Iterable[Tensor]) -> float:
    """The norm of all floats together."""
    floats = [leaf for leaf in leaves if leaf.is_floating_point()]
    if len({(leaf.dtype, leaf.device) for leaf in floats}) == 1:  # all at once
        norm = math.hypot(*torch.stack(torch._foreach_norm(floats)).tolist())
        if math.isfinite(norm):
            return norm
    return math.hypot(*map(_norm, floats))


def _norm(leaf: Tensor) -> float:
    """Finite if and only if all numbers are: where squares overflow, they are summed in doubles."""
    norm = float(torch.linalg.vector_norm(leaf))
    return norm if math.isfinite(norm) else float(torch.linalg.vector_norm(leaf, dtype=torch.float64))
