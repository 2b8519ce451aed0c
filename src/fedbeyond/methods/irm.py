"""Invariant Risk Minimization.

Arjovsky, Bottou, Gulrajani, Lopez-Paz; 2019; https://arxiv.org/abs/1907.02893

One classifier should be the best for every source domain at once: if all its scores were scaled by s, the slope of each
domain's risk at s = 1 should be zero (IRMv1). A reference, not a federation: it needs images of several domains in one
batch.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from ..batch import Batch
from ..client import Local, Term, training, upload
from ..method import Method
from ..optimizers import Optimizer, plain_sgd
from ..server import averaging
from ..site import Site
from ..tree import Tree
from .erm import domains

PRESETS = {
    "paper": {"weight": 1e5, "anneal": 0.0, "unbiased": True},  # Appendix D
    "official": {"weight": 91257.0, "anneal": 0.38},
}

Penalty = Callable[[Tensor, Tensor, Batch], Tensor | float]  # of scores and labels


def irm(
    weight: Annotated[float, Field(ge=0)] = 10.0,
    anneal: Annotated[float, Field(ge=0, le=1)] = 0.5,
    rescale: bool = True,
    unbiased: bool = False,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Pooled training, with a penalty where a domain would scale the scores otherwise."""
    term = penalised(partial(invariance, unbiased=unbiased), weight, anneal, rescale)
    client = training(term, optimizer=optimizer, init=unplayed, finish=counted)
    return Method(client=client, server=averaging, weighting=None, pooled=True, least=2)


def invariance(scores: Tensor, y: Tensor, batch: Batch, unbiased: bool) -> Tensor | float:
    """The squared slope of each domain's risk along s, the mean over domains."""
    guess = (scores.softmax(1) * scores).sum(1)
    slopes = guess - scores.gather(1, y[:, None]).squeeze(1)  # of cross-entropy along s, at s = 1, for each image
    apart = [slopes[place] for place in domains(batch, least=2)]
    if unbiased:  # Appendix D: the slopes of two halves are independent, the square of one is not free of noise
        squares = [own[::2].mean() * own[1::2].mean() for own in apart]
    else:
        squares = [own.mean().square() for own in apart]
    return torch.stack(squares).mean() if squares else 0.0


def penalised(penalty: Penalty, weight: float, anneal: float, rescale: bool) -> Term:
    """Cross-entropy plus a penalty, whose weight grows when a share `anneal` of the rounds is played."""

    def term(local: Local, batch: Batch) -> Tensor:
        x, y = batch.merged
        scores, now = local.net(x), strength(local, weight, anneal)
        loss = F.cross_entropy(scores, y) + now * penalty(scores, y, batch)
        return loss / max(now, 1.0) if rescale else loss

    return term


def strength(local: Local, weight: float, anneal: float) -> float:
    """What a penalty counts in this round: at most once at first, then its whole weight."""
    played = int(local.private["played"]) / local.site.rounds
    return weight if played >= anneal else min(weight, 1.0)


def unplayed(site: Site) -> Tree:
    return {"played": torch.tensor(0)}


def counted(local: Local) -> tuple[Tree, Tree]:
    reply, private = upload(local)
    return reply, private | {"played": private["played"] + 1}
