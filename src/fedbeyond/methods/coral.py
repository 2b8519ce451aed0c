"""Deep CORAL: Correlation Alignment for Deep Domain Adaptation.

Sun, Saenko; ECCV 2016; https://arxiv.org/abs/1607.01719

Features of all source domains should have the same covariances (and the same means): the squared differences between
domains in a batch are added to the loss. A reference, not a federation: it needs images of several domains in a batch.
"""

from functools import partial
from typing import Annotated

from pydantic import Field
from torch import Tensor

from ..client import training
from ..method import Method
from ..optimizers import Optimizer, plain_sgd
from ..server import averaging
from .mmd import aligned

PRESETS = {"paper": {"weight": 0.25, "means": False}, "domainbed": {}}  # Eq. 1 has 1/(4 d^2)


def coral(weight: Annotated[float, Field(ge=0)] = 1.0, means: bool = True, optimizer: Optimizer = plain_sgd) -> Method:
    """Pooled training, with covariances (and means) of features alike in all domains."""
    client = training(aligned(weight, partial(difference, means=means)), optimizer=optimizer)
    return Method(client=client, server=averaging, weighting=None, pooled=True, least=2)


def difference(one: Tensor, other: Tensor, means: bool) -> Tensor:
    """How far the covariances of two domains' features are apart, a mean over the d x d; perhaps their means too."""
    apart = (covariance(one) - covariance(other)).square().mean()  # Eq. 1
    return apart + (one.mean(0) - other.mean(0)).square().mean() if means else apart


def covariance(features: Tensor) -> Tensor:  # Eqs. 2, 3
    centred = features - features.mean(0)
    return centred.T @ centred / (len(features) - 1)
