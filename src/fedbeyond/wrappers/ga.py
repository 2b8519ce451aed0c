"""Federated Domain Generalization with Generalization Adjustment.

Zhang, Xu, Yao, Zhang, Tian, Wang; CVPR 2023.

A site has a large generalization gap if the averaged model does much worse on it than its own model did. It counts more
in the next average:  a_i += d * (1 - r/R) * (G_i - mean G) / max |G - mean G|, then clipped and normalised.
"""

from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from .._method import Method, also, loss
from ..client import Client
from ..errors import ConfigError
from ..server import Reply, Round, Weighting, by_size, uniform
from ..site import Site
from ..tree import Tree

PRESETS = {
    "paper": {"norm": "max"},
    "official": {"metric": "accuracy", "center": False, "step": 0.2, "shared_step": True},
}


def ga(
    method: Method,
    step: Annotated[NonNegativeFloat, "largest change of a weight in a round, d in Eq. 3"] = 0.05,
    decay: Annotated[bool, "shrink the step linearly to zero over the run"] = True,
    metric: Annotated[Literal["loss", "accuracy"], "gap in validation loss, or in accuracy"] = "loss",
    center: Annotated[bool, "subtract the mean gap"] = True,
    norm: Annotated[Literal["maxabs", "max"], "divide by the largest absolute gap, or the largest gap"] = "maxabs",
    shared_step: Annotated[bool, "divide the step by the number of sites"] = False,
) -> Method:
    """Raise the aggregation weights of the sites on which the averaged model generalizes worst."""
    if method.pooled:
        raise ConfigError("ga weights sites, but this method pools the data of all sites in one place: remove ga")
    if method.weighting not in (by_size, uniform):
        raise ConfigError(
            "ga sets the aggregation weights, but this method or a wrapper of it does that itself: remove one of them"
        )

    score = (loss if metric == "loss" else loss._replace(within=(-1.0, 0.0)))._replace(evaluates="val")

    def move(gaps: Tensor, pace: float) -> Tensor:  # Eq. 3, first half
        excess = gaps - gaps.mean() if center else gaps
        largest = float(excess.abs().max() if norm == "maxabs" else excess.max())
        return pace * excess / largest if largest > 1e-12 else torch.zeros_like(gaps)

    def update(replies: list[Reply], memory: Tree, now: Round) -> tuple[list[float], Tree]:
        names, shares, last = [r.client for r in replies], memory["shares"], memory["trained"]
        current = torch.stack([shares[name] for name in names])
        seen = [i for i, name in enumerate(names) if name in last]  # a site that trained before has a gap
        gap = {names[i]: replies[i].body["ga_received"] - last[names[i]] for i in seen}
        shift = torch.zeros_like(current)
        if seen:
            gaps = torch.stack(list(gap.values())).double()
            pace = step * (1 - now.number / now.total if decay else 1)
            shift[seen] = move(gaps, pace / len(now.enrolled) if shared_step else pace)
        moved = (current + shift).clamp(min=0)
        weights = moved / moved.sum() if moved.sum() > 0 else torch.ones_like(moved) / len(moved)
        trained = {r.client: r.body["ga_trained"] for r in replies}
        shares = shares | dict(zip(names, weights * current.sum(), strict=True))  # other sites keep their shares
        return weights.tolist(), {"shares": shares, "trained": last | trained, "diagnostics": {"gaps": gap}}

    return replace(
        method,
        client=with_validation_scores(method.client, metric),
        weighting=Weighting(equal_weights, update),
        sends=also(method.sends, "train", ga_received=score, ga_trained=score),
        uses_total=method.uses_total | ({"ga(decay=true)"} if decay else set()),
        linear_aggregation=False,  # the server needs every site's gap
    )


def equal_weights(clients: tuple[str, ...]) -> Tree:
    """Return the state before the first round: equal shares, no losses."""
    shares = {name: torch.tensor(1 / len(clients), dtype=torch.float64) for name in clients}
    return {"shares": shares, "trained": {}, "diagnostics": {"gaps": {}}}


def with_validation_scores(client: Client, metric: str) -> Client:
    """Make a client also send how well the received and the trained model do on its validation images."""

    def badness(site: Site, model: Tree) -> Tensor:
        return site.loss(model) if metric == "loss" else -site.measure(model)["accuracy"]

    def train(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
        before = badness(site, received["model"])
        reply, kept = client.handlers["train"](site, received, private)
        measured = {"ga_received": before, "ga_trained": badness(site, reply["model"])}
        return reply | measured, kept

    return client.also(train=train)
