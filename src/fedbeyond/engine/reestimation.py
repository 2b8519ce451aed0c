"""Re-estimate the BatchNorm statistics of an aggregated model, layer by layer, over the sites of a federation.

The mean of running statistics of models that were trained on different domains is wrong twice: the variance between
the sites' means is missing, and the statistics belong to other weights than the averaged ones. Instead, each site
computes the moments of the aggregated model's layers on a fixed sample of its own training images, without
augmentation. They are combined by the law of total variance; a layer is measured after the layers before it have the
combined statistics. Only copies of the model that are evaluated, saved and exported have these statistics. Training
does not use them.
"""

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .. import tree
from .._method import Method, Sent
from ..classifier import write
from ..errors import ConfigError
from ..networks.moments import Levels, Pass, levels, measure_layers, tracked_layers
from ..server import Failure, Reply, Request
from ..site import Site
from ..tree import Tree
from .gate import Answers, Gate, LedgerEntry, finite

KIND = "statistics"  # the kind of request
MAX_WAITING = 2**31  # bytes that suspended passes may hold; further sites start a new pass for every level
Measure = Callable[[Request, int], Answers]  # send a request of a round to sites
Models = Mapping[str, Tree]


def _like(nets: Tree, body: Tree) -> Tree:
    channels = {name: nets["model"]["buffers"][f"{name}.running_mean"] for name in body["wanted"]}
    return {name: {"mean": one, "deviation": one} for name, one in channels.items()}


SENDS = {KIND: {"moments": Sent("statistics", _like)}}


def is_reestimated(method: Method, net: nn.Module) -> bool:
    """Return whether the BatchNorm statistics of a method's models are re-estimated before they are evaluated."""
    return method.reestimate and bool(tracked_layers(net))


def ensure_no_noise(method: Method) -> None:
    """Raise `ConfigError` if a method promises privacy, which moments without noise would break."""
    if method.privacy:
        raise ConfigError(
            "train.batchnorm = 'reestimate' sends moments of a site's images, to which dp adds no noise; set "
            "train.batchnorm = 'average', or use a network without BatchNorm, as in convnet(norm=group)"
        )


def levels_of(method: Method, net: nn.Module, shape: Sequence[int]) -> Levels:
    """Return the layers to re-estimate, level by level; empty if there are none. `ConfigError` under dp."""
    if not is_reestimated(method, net):
        return ()
    ensure_no_noise(method)
    return levels(net, shape)


def request_moments(model: Tree, levels: Levels, weights: Mapping[str, float]) -> Generator[Request, list[Reply], Tree]:
    """Request the moments of one level after the other from the sites in `weights`; return the re-estimated model.

    A site that does not reply for one level is not asked for the next; the weights of the others are renormalised. If
    no site is left, or the combined moments are not finite, the model keeps its statistics. The model is sent once:
    sites keep it until the last level.
    """
    known, asked = Tree(), tuple(sorted(weights))
    for place, level in enumerate(levels):
        body: Tree = {"wanted": {name: torch.empty(0) for name in level}, "known": known}
        body |= {"remaining": torch.tensor(len(levels) - place - 1)} | ({} if place else {"model": model})
        replies = yield Request(KIND, body, asked, quorum=0)
        asked = tuple(reply.client for reply in replies)
        if not asked:
            return model
        shares = [weights[client] for client in asked]
        fresh = {name: combine_moments([reply.body["moments"][name] for reply in replies], shares) for name in level}
        if not finite(*tree.leaves(fresh)):
            return model
        known = known | fresh
    return with_statistics(model, known)


def combine_moments(moments: Sequence[Tree], weights: Sequence[float]) -> Tree:
    """Combine the moments of several sites by the law of total variance: within sites, plus between their means."""
    total = sum(weights)
    shares = [weight / total for weight in weights] if total else [1 / len(weights)] * len(weights)
    means = [one["mean"].double() for one in moments]
    mean = torch.stack([share * own for share, own in zip(shares, means, strict=True)]).sum(0)
    parts = [
        share * (one["deviation"].double().square() + (own - mean).square())
        for share, one, own in zip(shares, moments, means, strict=True)
    ]
    return {"mean": mean.float(), "variance": torch.stack(parts).sum(0).float()}


def with_statistics(model: Tree, known: Tree) -> Tree:
    """Return a model with other running statistics; parameters and counters stay."""
    fresh: dict[str, Tensor] = {}
    for name, statistics in known.items():
        fresh |= {f"{name}.running_mean": statistics["mean"], f"{name}.running_var": statistics["variance"]}
    return model | {"buffers": model["buffers"] | fresh}


class Outcome(NamedTuple):
    """Models with re-estimated statistics, rejected replies, and the bytes that left and reached the sites."""

    models: dict[str, Tree]
    rejected: list[Failure]
    ledger: list[LedgerEntry]
    received: Counter[str]


def reestimate_models(
    models: Models, levels: Levels, weights: Mapping[str, float], measure: Measure, gate: Gate, number: int
) -> Outcome:
    """Re-estimate the statistics of models after a round; those of a site's own model from that site alone."""
    outcome = Outcome({}, [], [], Counter())
    gate = Gate(SENDS, gate.nets, gate.enrolled, gate.quorum)
    for name, model in models.items():
        own = name in gate.enrolled and name != "model"
        talk = request_moments(model, levels, {name: 1.0} if own else weights)
        request = next(talk)
        while name not in outcome.models:
            verdict = gate.admit(request, measure(request, number))
            outcome.rejected.extend(verdict.rejected)
            outcome.ledger.extend(verdict.ledger)
            outcome.received.update(dict.fromkeys(request.to, tree.size(request.body)))
            try:
                request = talk.send(verdict.replies)
            except StopIteration as end:
                outcome.models[name] = end.value
                if end.value is model and verdict.replies:
                    reason = "sent moments that together are not finite; the model keeps averaged statistics"
                    outcome.rejected.extend(Failure(reply.client, reason) for reply in verdict.replies)
    return outcome


def moments_of(site: Site, model: Tree, request: Request) -> Reply:
    """Return a site's reply for one level, computed in one forward pass."""
    body = request.body
    net = write(site.nets["model"], model)
    found = measure_layers(net, site.clean(), tree.to(site.device, body["known"]), list(body["wanted"]))
    return Reply(site.name, {"moments": tree.to("cpu", found)}, site.size)


class SuspendedPasses:
    """The forward passes of sites in one process, suspended between levels: one pass per site and model."""

    def __init__(self, sites: Mapping[str, Site]) -> None:
        self.sites, self.model = sites, Tree()
        self.waiting: dict[str, Pass] = {}

    def measure(self, request: Request, number: int) -> dict[str, Reply | Failure]:
        """Return the reply of each requested site, or why there is none."""
        if "model" in request.body:
            self.close()
            self.model = request.body["model"]
        answers: dict[str, Reply | Failure] = {}
        for name in request.to:
            try:
                answers[name] = self._answer(self.sites[name], request)
            except Exception as error:  # a site that raises gives no reply, as over a network
                answers[name] = Failure(name, f"{type(error).__name__}: {error}", error)
        if not request.body["remaining"]:
            self.close()
        return answers

    def close(self) -> None:
        """End suspended passes."""
        for one in self.waiting.values():
            one.close()
        self.waiting, self.model = {}, {}

    def _answer(self, site: Site, request: Request) -> Reply:
        wanted, known = list(request.body["wanted"]), request.body["known"]
        one = self.waiting.get(site.name)
        if one is None and not known and sum(other.bytes for other in self.waiting.values()) < MAX_WAITING:
            one = self.waiting[site.name] = Pass(write(site.nets["model"], self.model), site.clean())
        if one is None or len(wanted) > 1:  # the other layers of this level come after layers that are not yet known
            return moments_of(site, self.model, request)
        name, found = one.advance(tree.to(site.device, known))
        if [name] != wanted:
            raise ValueError(f"the pass stopped at {name or 'its end'}, not at {wanted[0]}")
        return Reply(site.name, {"moments": {name: tree.to("cpu", found)}}, site.size)
