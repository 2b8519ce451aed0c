"""Invariant Risk Minimization.

Arjovsky, Bottou, Gulrajani, Lopez-Paz; 2019; https://arxiv.org/abs/1907.02893

One classifier should be optimal for every source domain at once: if all its logits were scaled by s, the derivative of
each domain's risk at s = 1 should be zero (IRMv1). A pooled reference: it needs images of several domains in one batch.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated

import torch
from pydantic import NonNegativeFloat
from torch import Tensor
from torch.nn import functional as F

from .._method import Method, Share
from ..batch import Batch
from ..client import Local, training, upload
from ..optimizers import Optimizer, plain_sgd
from ..server import averaging
from ..site import Site
from ..tree import Tree
from .erm import domains

PRESETS = {
    "paper": {"weight": 1e5, "anneal": 0.0, "unbiased": True},  # Appendix D
    "official": {"weight": 91257.0, "anneal": 0.38},
}

Anneal = Annotated[Share, "share of the rounds after which the weight grows from at most 1"]
Rescale = Annotated[bool, "divide the loss by the weight, if that is above 1"]
Penalty = Callable[[Tensor, Tensor, Batch], Tensor | float]  # of logits, labels and their batch


def irm(
    weight: Annotated[NonNegativeFloat, "weight of the penalty, lambda"] = 10.0,
    anneal: Anneal = 0.5,
    rescale: Rescale = True,
    unbiased: Annotated[bool, "multiply the slopes of two halves instead of squaring one"] = False,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Train on pooled data, with a penalty if another scale of the logits is better for a domain."""
    return penalised("irm", partial(invariance, unbiased=unbiased), weight, anneal, rescale, optimizer)


def invariance(logits: Tensor, y: Tensor, batch: Batch, unbiased: bool) -> Tensor | float:
    """Compute the squared derivative of each domain's risk with respect to s, and average over domains."""
    expected = (logits.softmax(1) * logits).sum(1)
    slopes = expected - logits.gather(1, y[:, None]).squeeze(1)  # of each image's cross-entropy along s, at s = 1
    by_domain = [slopes[index] for index in domains(batch, least=2)]
    if unbiased:  # Appendix D: the slopes of two halves have independent noise, the square of one slope is biased
        squares = [part[::2].mean() * part[1::2].mean() for part in by_domain]
    else:
        squares = [part.mean().square() for part in by_domain]
    return torch.stack(squares).mean() if squares else 0.0


def penalised(name: str, penalty: Penalty, weight: float, anneal: float, rescale: bool, optimizer: Optimizer) -> Method:
    """Return training on pooled data with a penalty, whose weight grows after the share `anneal` of the rounds."""

    def term(local: Local, batch: Batch) -> Tensor:
        x, y = batch.merged
        logits, now = local.net(x), strength(local, weight, anneal)
        loss = F.cross_entropy(logits, y) + now * penalty(logits, y, batch)
        return loss / max(now, 1.0) if rescale else loss

    return Method(
        client=training(term, optimizer=optimizer, init=zero_rounds, finish=upload_and_count),
        server=averaging,
        weighting=None,
        keeps={"played"},
        uses_total=annealed(name, weight, anneal),
        pooled=True,
        min_clients=2,
        inputs_unchanged=True,
    )


def strength(local: Local, weight: float, anneal: float) -> float:
    """Return the weight of the penalty in this round: at most 1 at first, then `weight`."""
    if not annealed("", weight, anneal):
        return weight
    progress = int(local.private["played"]) / local.site.rounds
    return weight if progress >= anneal else min(weight, 1.0)


def annealed(name: str, weight: float, anneal: float) -> set[str]:
    """Return what depends on the total number of rounds: `anneal`, if it changes the weight of the penalty."""
    return {f"{name}(anneal={anneal:g})"} if weight > 1 and anneal else set()


def zero_rounds(site: Site) -> Tree:
    """Return the private state before the first round: a round counter at zero."""
    return {"played": torch.tensor(0)}


def upload_and_count(local: Local) -> tuple[Tree, Tree]:
    """Send the model, and count the round in the private state."""
    reply, private = upload(local)
    return reply, private | {"played": private["played"] + 1}
