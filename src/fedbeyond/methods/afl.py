"""Agnostic Federated Learning.

Mohri, Sivek, Suresh; ICML 2019; https://arxiv.org/abs/1902.00146

A model for whichever mixture of the sites' data it may meet: while the model descends the weighted loss
sum lambda_i L_i, the weights ascend it on the simplex, towards the sites that the model serves worst.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from ..client import training
from ..losses import cross_entropy
from ..method import Method, also, parameters, scalar
from ..optimizers import Optimizer, plain_sgd
from ..server import Reply, Round, Weighting, averaging
from ..tree import Tree
from .arfl import telling

PRESETS: dict[str, Tree] = {"paper": {}}  # the authors published no code


def afl(step: Annotated[float, Field(ge=0)] = 0.1, optimizer: Optimizer = plain_sgd) -> Method:
    """Weights that climb, by `step` times the losses of the received model, and are projected onto the simplex."""

    def update(replies: list[Reply], memory: Tree, now: Round) -> tuple[list[float], Tree]:
        names, shares = [reply.client for reply in replies], memory["shares"]
        held = torch.stack([shares[name] for name in names])
        weights = held / held.sum() if held.sum() > 0 else torch.full_like(held, 1 / len(held))
        losses = torch.stack([reply.body["loss"] for reply in replies]).double()
        slope = losses - losses.mean()  # a constant added to all moves no projection; who was not asked stays
        climbed = shares | dict(zip(names, held + step * slope, strict=True))
        projected = onto_simplex(torch.stack(list(climbed.values())))  # Stochastic-AFL, the step of lambda
        told = {"losses": {reply.client: reply.body["loss"] for reply in replies}}
        return weights.tolist(), {"shares": dict(zip(climbed, projected, strict=True)), "told": told}

    return Method(
        client=training(cross_entropy(), optimizer=optimizer, finish=telling),
        server=averaging,
        weighting=Weighting(even, update),
        sends=also({}, "train", model=parameters("model"), loss=scalar),
    )


def even(clients: tuple[str, ...]) -> Tree:
    shares = {name: torch.tensor(1 / len(clients), dtype=torch.float64) for name in sorted(clients)}
    return {"shares": shares, "told": {"losses": {}}}


def onto_simplex(point: Tensor) -> Tensor:
    """The nearest point with no negative number and a sum of one: all lowered alike, and cut off at zero."""
    highest = point.sort(descending=True).values
    lowered = (highest.cumsum(0) - 1) / torch.arange(1, len(point) + 1)  # by how much, if so many stay above zero
    return (point - lowered[highest > lowered][-1]).clamp(min=0)
