"""Deep CORAL: Correlation Alignment for Deep Domain Adaptation.

Sun, Saenko; ECCV 2016; https://arxiv.org/abs/1607.01719

Features of all source domains should have the same covariances (and the same means): the squared differences between
domains in a batch are added to the loss. A pooled reference: it needs images of several domains in one batch.
"""

from functools import partial
from typing import Annotated

from pydantic import NonNegativeFloat
from torch import Tensor

from .._method import Method
from ..client import training
from ..optimizers import Optimizer, plain_sgd
from ..server import averaging
from .mmd import aligned

PRESETS = {"paper": {"weight": 0.25, "means": False}, "domainbed": {}}  # Eq. 1 has 1/(4 d^2)


def coral(
    weight: Annotated[NonNegativeFloat, "weight of the alignment"] = 1.0,
    means: Annotated[bool, "align the means of features as well"] = True,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Train on pooled data, with equal covariances (and means) of the features of all domains."""
    client = training(aligned(weight, partial(difference, means=means)), optimizer=optimizer)
    return Method(
        client=client,
        server=averaging,
        weighting=None,
        needs={"features"},
        shapes_features=True,
        pooled=True,
        min_clients=2,
        inputs_unchanged=True,
    )


def difference(a: Tensor, b: Tensor, means: bool) -> Tensor:
    """Compute the mean squared difference of two domains' d x d covariances; with `means`, also of their means."""
    loss = (covariance(a) - covariance(b)).square().mean()  # Eq. 1
    return loss + (a.mean(0) - b.mean(0)).square().mean() if means else loss


def covariance(features: Tensor) -> Tensor:  # Eqs. 2, 3
    """Compute the unbiased covariance matrix of features (one row per image)."""
    centred = features - features.mean(0)
    return centred.T @ centred / (len(features) - 1)
