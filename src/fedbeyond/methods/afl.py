"""Agnostic Federated Learning.

Mohri, Sivek, Suresh; ICML 2019; https://arxiv.org/abs/1902.00146

The model should be good on any mixture of the sites' data. It descends the weighted loss sum lambda_i L_i, while the
weights lambda ascend the same loss on the simplex, towards the sites with the largest losses.
"""

from typing import Annotated

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from .._method import Method, also, loss, parameters
from ..client import training
from ..losses import cross_entropy
from ..optimizers import Optimizer, plain_sgd
from ..server import Reply, Round, Weighting, averaging
from ..tree import Tree
from .arfl import upload_with_loss

PRESETS: dict[str, Tree] = {"paper": {}}  # the authors published no code


def afl(
    step: Annotated[NonNegativeFloat, "step size of the ascent of the weights lambda"] = 0.1,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Average models with weights that ascend the losses of the received model by `step`, on the simplex."""

    def update(replies: list[Reply], memory: Tree, now: Round) -> tuple[list[float], Tree]:
        names, shares = [reply.client for reply in replies], memory["shares"]
        current = torch.stack([shares[name] for name in names])
        weights = current / current.sum() if current.sum() > 0 else torch.full_like(current, 1 / len(current))
        losses = torch.stack([reply.body["loss"] for reply in replies]).double()
        slope = losses - losses.mean()  # centred (same projection): sites without a reply get slope 0
        ascended = shares | dict(zip(names, current + step * slope, strict=True))
        projected = onto_simplex(torch.stack(list(ascended.values())))  # Stochastic-AFL, the step of lambda
        diagnostics = {"losses": {reply.client: reply.body["loss"] for reply in replies}}
        return weights.tolist(), {"shares": dict(zip(ascended, projected, strict=True)), "diagnostics": diagnostics}

    return Method(
        client=training(cross_entropy(), optimizer=optimizer, finish=upload_with_loss),
        server=averaging,
        weighting=Weighting(equal_weights, update),
        sends=also({}, "train", model=parameters("model"), loss=loss._replace(evaluates="train")),
        inputs_unchanged=True,
    )


def equal_weights(clients: tuple[str, ...]) -> Tree:
    """Return the initial weighting state: the same share for every client."""
    shares = {name: torch.tensor(1 / len(clients), dtype=torch.float64) for name in sorted(clients)}
    return {"shares": shares, "diagnostics": {"losses": {}}}


def onto_simplex(point: Tensor) -> Tensor:
    """Return the nearest point on the simplex: subtract one offset from all coordinates, then clip at zero."""
    ordered = point.sort(descending=True).values
    offsets = (ordered.cumsum(0) - 1) / torch.arange(1, len(point) + 1)  # the offset if the k largest stay positive
    return (point - offsets[ordered > offsets][-1]).clamp(min=0)
