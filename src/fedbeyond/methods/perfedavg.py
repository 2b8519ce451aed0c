"""Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning Approach.

Fallah, Mokhtari, Ozdaglar; NeurIPS 2020; https://arxiv.org/abs/2002.07948

Per-FedAvg, first order: the model should do well after one step at a site, not before it. Each step takes two half
batches: w' = w - alpha * grad(w; first),  then w moves along grad(w'; second).
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from ..batch import Batch
from ..classifier import resting
from ..client import Local, Term, training
from ..method import Method
from ..optimizers import Optimizer, plain_sgd
from ..server import averaging, uniform
from ..tree import Tree

PRESETS: dict[str, Tree] = {"paper": {}}  # the authors published no code


def perfedavg(alpha: Annotated[float, Field(ge=0)] = 0.01, optimizer: Optimizer = plain_sgd) -> Method:
    """A model from which one step of size `alpha` at any site leads to a good one; evaluated without that step."""
    client = training(after_a_step(alpha), optimizer=optimizer)
    return Method(client=client, server=averaging, weighting=uniform, sums=True)


def after_a_step(alpha: float) -> Term:
    """The loss on the second half of a batch, after a step on the first.

    The step counts as a constant, so that the gradient is that at w', at first order. Running statistics are those at
    w, which is the model that is evaluated.
    """

    def term(local: Local, batch: Batch) -> Tensor:  # Algorithm 1
        (x, y), (other, answer) = (half.merged for half in halves(batch))
        names, params = zip(*local.params.items(), strict=True)
        slopes = torch.autograd.grad(
            F.cross_entropy(local.net(x), y), params, allow_unused=True, materialize_grads=True
        )
        moved = {name: w - alpha * slope for name, w, slope in zip(names, params, slopes, strict=True)}
        with resting(local.net):
            return F.cross_entropy(functional_call(local.net, moved, (other,)), answer)

    return term


def halves(batch: Batch) -> tuple[Batch, Batch]:
    """The two halves of a batch, with their views; twice the whole where a half would have a single image."""
    middle = len(batch.x) // 2
    if middle < 2:
        return batch, batch
    first, second = slice(middle), slice(middle, None)
    return cut(batch, first), cut(batch, second)


def cut(batch: Batch, part: slice) -> Batch:
    return Batch(batch.x[part], batch.y[part], tuple(view[part] for view in batch.views))
