"""Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning Approach.

Fallah, Mokhtari, Ozdaglar; NeurIPS 2020; https://arxiv.org/abs/2002.07948

Per-FedAvg, first order: the model should do well after one step at a site, not before it. Each step uses two half
batches: w' = w - alpha * grad(w; first),  then w moves along grad(w'; second).
"""

from typing import Annotated

import torch
from pydantic import NonNegativeFloat
from torch import Tensor
from torch.nn import functional as F

from .._method import Method
from ..batch import Batch
from ..classifier import call_with, statistics_kept
from ..client import Local, Term, training
from ..optimizers import Optimizer, plain_sgd
from ..server import averaging, uniform
from ..tree import Tree

PRESETS: dict[str, Tree] = {"paper": {}}  # the authors published no code


def perfedavg(
    alpha: Annotated[NonNegativeFloat, "size of the inner step, alpha"] = 0.01, optimizer: Optimizer = plain_sgd
) -> Method:
    """Average models that are trained to do well after one step of size `alpha`; evaluate them without that step."""
    client = training(after_a_step(alpha), optimizer=optimizer)
    return Method(client=client, server=averaging, weighting=uniform, linear_aggregation=True, inputs_unchanged=True)


def after_a_step(alpha: float) -> Term:
    """Return the loss on the second half of a batch, after a step on the first half.

    The step is treated as a constant: the gradient is the one at w', of first order. Running statistics are those at w,
    because that model is evaluated.
    """

    def term(local: Local, batch: Batch) -> Tensor:  # Algorithm 1
        (x, y), (x2, y2) = (half.merged for half in halves(batch))
        names, params = zip(*local.params.items(), strict=True)
        slopes = torch.autograd.grad(
            F.cross_entropy(local.net(x), y), params, allow_unused=True, materialize_grads=True
        )
        moved = {name: w - alpha * slope for name, w, slope in zip(names, params, slopes, strict=True)}
        with statistics_kept(local.net):
            return F.cross_entropy(call_with(local.net, moved, x2), y2)

    return term


def halves(batch: Batch) -> tuple[Batch, Batch]:
    """Split a batch and its views into two halves; return it twice if a half would have fewer than two images."""
    middle = len(batch.x) // 2
    if middle < 2:
        return batch, batch
    first, second = (
        Batch(batch.x[part], batch.y[part], tuple(view[part] for view in batch.views))
        for part in (slice(middle), slice(middle, None))
    )
    return first, second
