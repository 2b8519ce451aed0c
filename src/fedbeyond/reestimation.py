"""Re-estimate the BatchNorm statistics of an aggregated model, layer by layer, over the sites of a federation.

The mean of running statistics of models that were trained on different domains is wrong twice: the variance between the
sites' means is missing, and the statistics belong to other weights than the averaged ones. Here each site measures
the moments of the aggregated model's layers on a fixed sample of its own clean training images. They are combined by
the law of total variance, and a layer is measured with the combined statistics in all layers before it. Only copies of
the model that are evaluated, saved and exported carry these statistics: training never sees them.
"""

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import tree
from .data.site import Site
from .gate import Answers, Failure, Gate, Left
from .method import Sent
from .nets import write
from .nets.moments import Levels, Pass, measured
from .server import Reply, Request
from .tree import Tree

KIND = "statistics"  # of request
TOGETHER = 16  # sites whose passes may wait in memory; those of more are begun anew for every level
Measure = Callable[[Request, int], Answers]  # carry a request of a round to sites
Models = Mapping[str, Tree]


def _like(nets: Tree, body: Tree) -> Tree:
    channels = {name: nets["model"]["buffers"][f"{name}.running_mean"] for name in body["wanted"]}
    return {name: {"mean": one, "deviation": one} for name, one in channels.items()}


SENDS = {KIND: {"moments": Sent("statistics", _like)}}


def conversation(model: Tree, levels: Levels, weights: Mapping[str, float]) -> Generator[Request, list[Reply], Tree]:
    """Ask those who have a weight for the moments of one level after the other; the model with the new statistics.

    Who does not answer for one level is not asked for the next; the weights of the others are renormalised. The model
    is sent once: sites keep it while levels remain.
    """
    known, asked = Tree(), tuple(sorted(weights))
    for place, level in enumerate(levels):
        body: Tree = {"wanted": {name: torch.empty(0) for name in level}, "known": known}
        body |= {"remaining": torch.tensor(len(levels) - place - 1)} | ({} if place else {"model": model})
        replies = yield Request(KIND, body, asked, quorum=1)
        asked = tuple(reply.client for reply in replies)
        found = [reply.body["moments"] for reply in replies]
        shares = [weights[client] for client in asked]
        known = known | {name: combined([one[name] for one in found], shares) for name in level}
    return with_statistics(model, known)


def combined(moments: Sequence[Tree], weights: Sequence[float]) -> Tree:
    """Combine the moments of several sites by the law of total variance: variances within, and between the means."""
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
    """The same model with other running statistics; parameters and counters are its own."""
    fresh: dict[str, Tensor] = {}
    for name, statistics in known.items():
        fresh |= {f"{name}.running_mean": statistics["mean"], f"{name}.running_var": statistics["variance"]}
    return model | {"buffers": model["buffers"] | fresh}


class Outcome(NamedTuple):
    """Models with re-estimated statistics, who did not answer, and what left and reached the sites."""

    models: dict[str, Tree]
    rejected: list[Failure]
    left: list[Left]
    received: Counter[str]


def reestimated(
    models: Models, levels: Levels, weights: Mapping[str, float], measure: Measure, gate: Gate, number: int
) -> Outcome:
    """Re-estimate the statistics of models after a round; of a site's own model, from that site's moments alone."""
    outcome = Outcome({}, [], [], Counter())
    gate = Gate(SENDS, gate.nets, gate.enrolled, gate.quorum)
    for name, model in models.items():
        talk = conversation(model, levels, {name: 1.0} if name in gate.enrolled and name != "model" else weights)
        request = next(talk)
        while name not in outcome.models:
            verdict = gate.admit(request, measure(request, number))
            outcome.rejected.extend(verdict.aside)
            outcome.left.extend(verdict.ledger)
            outcome.received.update(dict.fromkeys(request.to, tree.size(request.body)))
            try:
                request = talk.send(verdict.replies)
            except StopIteration as end:
                outcome.models[name] = end.value
    return outcome


def moments_of(site: Site, model: Tree, request: Request) -> Reply:
    """A site's answer to one level, in a pass of its own through the model."""
    body = request.body
    net = write(site.nets["model"], model)
    found = measured(net, site.clean(), _on(site, body["known"]), list(body["wanted"]))
    return Reply(site.name, {"moments": _on(None, found)}, site.size)


class Passes:
    """Sites of one process, whose forward passes wait between levels: a model is measured in one pass a site."""

    def __init__(self, sites: Mapping[str, Site]) -> None:
        self.sites, self.model = sites, Tree()
        self.waiting: dict[str, Pass] = {}

    def measure(self, request: Request, number: int) -> dict[str, Reply | Failure]:
        """The answer of each site that is asked, or why there is none."""
        if "model" in request.body:
            self.close()
            self.model = request.body["model"]
            for site in [self.sites[name] for name in request.to if len(request.to) <= TOGETHER]:
                self.waiting[site.name] = Pass(write(site.nets["model"], self.model), site.clean())
        answers: dict[str, Reply | Failure] = {}
        for name in request.to:
            try:
                answers[name] = self._answer(self.sites[name], request)
            except Exception as error:  # a site that fails is a site that does not answer, as over a network
                answers[name] = Failure(name, f"{type(error).__name__}: {error}", error)
        if not request.body["remaining"]:
            self.close()
        return answers

    def close(self) -> None:
        """Leave passes that wait where they are."""
        for one in self.waiting.values():
            one.close()
        self.waiting = {}

    def _answer(self, site: Site, request: Request) -> Reply:
        wanted = list(request.body["wanted"])
        if len(wanted) > 1 or site.name not in self.waiting:  # later layers of a level lie behind others not yet known
            return moments_of(site, self.model, request)
        name, found = self.waiting[site.name].advance(_on(site, request.body["known"]))
        if [name] != wanted:
            raise ValueError(f"the pass stopped at {name!r}, not at {wanted}")
        return Reply(site.name, {"moments": {name: _on(None, found)}}, site.size)


def _on(site: Site | None, node: Any) -> Any:
    """A tree on the device of a site, or in main memory."""
    return tree.to(site.device if site else "cpu", node)
