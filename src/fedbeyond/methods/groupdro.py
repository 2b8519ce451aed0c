"""Distributionally Robust Neural Networks for Group Shifts.

Sagawa, Koh, Hashimoto, Liang; ICLR 2020; https://arxiv.org/abs/1911.08731

The loss is a weighted mean of the source domains' risks. The weights grow exponentially with the risks: training
concentrates on the worst domain. A pooled reference: it needs images of several domains in one batch.
"""

from typing import Annotated

import torch
from pydantic import NonNegativeFloat
from torch import Tensor
from torch.nn import functional as F

from .._method import Method
from ..batch import Batch
from ..classifier import read
from ..client import Local, training
from ..optimizers import Optimizer, plain_sgd
from ..server import averaging
from ..site import Site
from ..tree import Tree

PRESETS: dict[str, Tree] = {"paper": {}, "domainbed": {}}


def groupdro(
    eta: Annotated[NonNegativeFloat, "step size of the weights of domains, eta_q; 0: equal weights"] = 0.01,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Train on pooled data, with weights of the domains that grow with their risks."""

    def robust(local: Local, batch: Batch) -> Tensor:  # Algorithm 1
        x, y = batch.merged
        losses = F.cross_entropy(local.net(x), y, reduction="none")
        members = F.one_hot(batch.origins, len(local.private["logs"])).to(losses)
        risks = losses @ members / members.sum(0).clamp(min=1)  # zero for a domain that is not in the batch
        if int(local.private.get("step", -1)) < local.steps:  # once a batch, even if SAM computes the loss twice
            logs = (local.private["logs"] + eta * risks.detach()).log_softmax(0)
            local.private = {"logs": logs, "step": torch.tensor(local.steps)}
        weights: Tensor = local.private["logs"].exp()
        return weights @ risks

    client = training(robust, optimizer=optimizer, init=equal_weights, finish=keep)
    return Method(
        client=client,
        server=averaging,
        weighting=None,
        keeps={"logs"},
        pooled=True,
        min_clients=2,
        inputs_unchanged=True,
    )


def equal_weights(site: Site) -> Tree:
    """Return equal weights q of the domains, as logarithms: a tiny weight can grow again."""
    assert site.origin is not None
    return {"logs": torch.zeros(int(site.origin.max()) + 1).log_softmax(0)}


def keep(local: Local) -> tuple[Tree, Tree]:
    """Send the model, and keep the weights of the domains."""
    return {"model": read(local.net)}, {"logs": local.private["logs"]}
