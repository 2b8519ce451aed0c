"""Robust and Generalizable Visual Representation Learning via Random Convolutions, with the paper's whole loss.

Xu, Liu, Yang, Raffel, Niethammer; ICLR 2021; https://arxiv.org/abs/2007.13003

Each batch goes through several random convolutions. The cross-entropy uses the first copy. A consistency loss makes the
predictions on all copies, and on views that a wrapper adds, agree. The wrapper rc is the augmentation alone.
"""

import math
from typing import Annotated

import torch
from pydantic import NonNegativeFloat, NonNegativeInt
from torch import Tensor
from torch.nn import functional as F

from .._method import Method, Share
from ..batch import Batch, plain
from ..classifier import classifier, for_images
from ..client import Local, Term, training
from ..errors import ConfigError
from ..optimizers import Optimizer, plain_sgd
from ..server import averaging
from ..tree import Tree
from ..wrappers.rc import Mix, Sizes, random_convolution

PRESETS: dict[str, Tree] = {
    "paper": {},  # RC_mix1-7
    "img": {"mix": False, "keep": 0.5, "weight": 5.0},  # RC_img1-7, p = 0.5
    "official": {"nested": True},
}


def randconv(
    copies: Annotated[NonNegativeInt, "randomly convolved copies; 0: images, with a wrapper's views"] = 3,
    weight: Annotated[NonNegativeFloat, "weight of the consistency loss, lambda"] = 10.0,
    sizes: Sizes = (1, 3, 5, 7),
    mix: Mix = True,
    keep: Annotated[Share, "probability that a copy is not changed"] = 0.0,
    nested: Annotated[bool, "make further copies from the first, not from the image"] = False,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Average models that learn to predict the same for all randomly convolved copies of an image."""
    paint = random_convolution(sizes, mix, keep)

    def convolve(batch: Batch, rng: torch.Generator) -> Batch:
        first = paint(batch.x, rng)
        others = tuple(paint(first if nested else batch.x, rng) for _ in range(copies - 1))
        return batch._replace(x=first, views=others)

    return Method(
        client=training(agreeing(weight), optimizer=optimizer),
        server=averaging,
        linear_aggregation=True,
        augment=convolve if copies else plain,
        networks=for_images("randconv", classifier) if copies else classifier,
    )


def agreeing(weight: float) -> Term:
    """Return a loss: cross-entropy of the first copy, plus `weight` times how far predictions are from their mean."""

    def term(local: Local, batch: Batch) -> Tensor:
        if weight and not batch.views:
            raise ConfigError(
                "randconv has one copy of each image, so there is nothing for it to agree with; set weight=0, use more "
                "copies, or add views by a wrapper, as in randconv(copies=0, weight=12)+augmix(views=2)"
            )
        # one pass for each copy: BatchNorm must not mix copies of different kernels
        logits = torch.stack([local.net(x) for x in (batch.x, *batch.views)])
        loss = F.cross_entropy(logits[0], batch.y)
        return loss + weight * divergence(logits.log_softmax(2)) if weight else loss

    return term


def divergence(log_probs: Tensor) -> Tensor:
    """Compute KL(p || mean p) of log-probabilities (view x image x class), averaged over views and images."""
    average = log_probs.logsumexp(0) - math.log(len(log_probs))
    return (log_probs.exp() * (log_probs - average)).sum(2).mean()
