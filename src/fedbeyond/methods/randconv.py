"""Robust and Generalizable Visual Representation Learning via Random Convolutions, with the paper's whole loss.

Xu, Liu, Yang, Raffel, Niethammer; ICLR 2021; https://arxiv.org/abs/2007.13003

Each batch is seen through several random convolutions. The first copy is learnt from; the predictions of all copies,
and of whatever views a wrapper adds, are to agree. The wrapper rc is the augmentation alone.
"""

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from ..batch import Batch, plain
from ..classifier import classifier, for_images
from ..client import Local, Term, training
from ..errors import ConfigError
from ..method import Method
from ..optimizers import Optimizer, plain_sgd
from ..server import averaging
from ..tree import Tree
from ..wrappers.rc import Share, Sizes, painted

PRESETS: dict[str, Tree] = {
    "paper": {},  # RC_mix1-7
    "img": {"mix": False, "keep": 0.5, "weight": 5.0},  # RC_img1-7, p = 0.5
    "official": {"nested": True},
}


def randconv(
    copies: Annotated[int, Field(ge=0)] = 3,
    weight: Annotated[float, Field(ge=0)] = 10.0,
    sizes: Sizes = (1, 3, 5, 7),
    mix: bool = True,
    keep: Share = 0.0,
    nested: bool = False,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Averaging, with images seen through random convolutions and predictions of all copies held together."""
    paint = painted(sizes, mix, keep)

    def copied(batch: Batch, rng: torch.Generator) -> Batch:
        first = paint(batch.x, rng)
        others = tuple(paint(first if nested else batch.x, rng) for _ in range(copies - 1))
        return batch._replace(x=first, views=others)

    return Method(
        client=training(agreeing(weight), optimizer=optimizer),
        server=averaging,
        sums=True,
        augment=copied if copies else plain,
        networks=for_images("randconv", classifier) if copies else classifier,
    )


def agreeing(weight: float) -> Term:
    """Cross-entropy of the first copy, plus `weight` times how far predictions are from their mean."""

    def term(local: Local, batch: Batch) -> Tensor:
        if weight and not batch.views:
            raise ConfigError(
                "randconv has one copy of each image, so there is nothing for it to agree with; set weight=0, more "
                "copies, or views by a wrapper, as in randconv(copies=0, weight=12)+augmix(views=2)"
            )
        # each copy by itself: BatchNorm is not to mix what different kernels made
        scores = torch.stack([local.net(x) for x in (batch.x, *batch.views)])
        loss = F.cross_entropy(scores[0], batch.y)
        return loss + weight * divergence(scores.log_softmax(2)) if weight else loss

    return term


def divergence(guesses: Tensor) -> Tensor:
    """KL(p || mean p) of log-probabilities (view x image x class), the mean over views and images."""
    middle = guesses.logsumexp(0) - math.log(len(guesses))
    return (guesses.exp() * (guesses - middle)).sum(2).mean()
