"""Federated Domain Generalization with Generalization Adjustment.

Zhang, Xu, Yao, Zhang, Tian, Wang; CVPR 2023.

A site on which the mean of all models does much worse than its own model did has a large generalization gap, and
counts more in the next mean:  a_i += d * (1 - r/R) * (G_i - mean G) / max |G - mean G|, then clipped and normalised.
"""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from ..client import Client
from ..errors import ConfigError
from ..method import Method, also, scalar
from ..server import Reply, Round, Weighting, by_size, uniform
from ..site import Site
from ..tree import Tree

PRESETS = {
    "paper": {"norm": "max"},
    "official": {"metric": "accuracy", "center": False, "step": 0.2, "shared_step": True},
}


def ga(
    method: Method,
    step: float = 0.05,
    decay: bool = True,
    metric: Literal["loss", "accuracy"] = "loss",
    center: bool = True,
    norm: Literal["maxabs", "max"] = "maxabs",
    shared_step: bool = False,
) -> Method:
    """Weights that grow where the mean model generalizes worst, on top of any method that lets itself be weighed."""
    if method.pooled:
        raise ConfigError("ga weighs sites, but this method pools the data of all in one place: leave one out")
    if method.weighting not in (by_size, uniform):
        raise ConfigError(
            "ga chooses how much replies count, but this method or a wrapper of it does that itself: leave one out"
        )

    def move(gaps: Tensor, pace: float) -> Tensor:  # Eq. 3, its first half
        excess = gaps - gaps.mean() if center else gaps
        largest = float(excess.abs().max() if norm == "maxabs" else excess.max())
        return pace * excess / largest if largest > 1e-12 else torch.zeros_like(gaps)

    def update(replies: list[Reply], memory: Tree, now: Round) -> tuple[list[float], Tree]:
        names, shares, last = [r.client for r in replies], memory["shares"], memory["trained"]
        held = torch.stack([shares[name] for name in names])
        known = [i for i, name in enumerate(names) if name in last]  # who has trained before has a gap
        gap = {names[i]: replies[i].body["ga_received"] - last[names[i]] for i in known}
        shift = torch.zeros_like(held)
        if known:
            gaps = torch.stack(list(gap.values())).double()
            pace = step * (1 - now.number / now.total if decay else 1)
            shift[known] = move(gaps, pace / len(now.enrolled) if shared_step else pace)
        moved = (held + shift).clamp(min=0)
        weights = moved / moved.sum() if moved.sum() > 0 else torch.ones_like(moved) / len(moved)
        trained = {r.client: r.body["ga_trained"] for r in replies}
        shares = shares | dict(zip(names, weights * held.sum(), strict=True))  # who was not asked keeps its share
        return weights.tolist(), {"shares": shares, "trained": last | trained, "told": {"gaps": gap}}

    return replace(
        method,
        client=reporting(method.client, metric),
        weighting=Weighting(even, update),
        sends=also(method.sends, "train", ga_received=scalar, ga_trained=scalar),
        sums=False,  # every site's gap
    )


def even(clients: tuple[str, ...]) -> Tree:
    shares = {name: torch.tensor(1 / len(clients), dtype=torch.float64) for name in clients}
    return {"shares": shares, "trained": {}, "told": {"gaps": {}}}


def reporting(client: Client, metric: str) -> Client:
    """The same client, telling how well the received model does on its validation images, and its own after it."""

    def badness(site: Site, model: Tree) -> Tensor:
        return site.loss(model) if metric == "loss" else -site.measure(model)["accuracy"]

    def train(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
        before = badness(site, received["model"])
        reply, kept = client.handlers["train"](site, received, private)
        told = {"ga_received": before, "ga_trained": badness(site, reply["model"])}
        return reply | told, kept

    return client._replace(handlers={**client.handlers, "train": train})
