"""Domain Generalization with Adversarial Feature Learning.

Li, Pan, Wang, Kot; CVPR 2018.

Only the part of the paper's method that is commonly used as a reference: the features of all source domains should have
one distribution. The distance between two domains is the maximum mean discrepancy with Gaussian kernels of many widths.
A pooled reference: it needs images of several domains in one batch.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from typing import Annotated

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor
from torch.nn import functional as F

from .._method import Method
from ..batch import Batch
from ..client import Local, Term, training
from ..optimizers import Optimizer, plain_sgd
from ..server import averaging
from ..tree import Tree
from .erm import domains

PRESETS: dict[str, Tree] = {"domainbed": {}}

Distance = Callable[[Tensor, Tensor], Tensor]  # between the features of two domains


def mmd(
    weight: Annotated[NonNegativeFloat, "weight of the discrepancy"] = 1.0,
    gammas: Annotated[Sequence[PositiveFloat], "gammas of the Gaussian kernels, which are summed"] = (
        0.001,
        0.01,
        0.1,
        1.0,
        10.0,
        100.0,
        1000.0,
    ),
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Train on pooled data, with the features of all domains pulled towards one distribution."""
    if not gammas:
        raise ValueError("gammas=[] leaves no kernel; give one or more, as in gammas=[0.1, 1]")
    client = training(aligned(weight, partial(discrepancy, gammas=gammas)), optimizer=optimizer)
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


def aligned(weight: float, distance: Distance) -> Term:
    """Return a loss: cross-entropy, plus `weight` times the mean distance between the domains' features in a batch."""

    def term(local: Local, batch: Batch) -> Tensor:
        x, y = batch.merged
        features = local.net.features(x)
        penalty = between([features[index] for index in domains(batch, least=2)], distance)
        return F.cross_entropy(local.net.head(features), y) + weight * penalty

    return term


def between(groups: list[Tensor], distance: Distance) -> Tensor | float:
    """Return the mean distance over all pairs of domains; 0 if there is no pair."""
    pairs = [distance(a, b) for a, b in combinations(groups, 2)]
    return torch.stack(pairs).mean() if pairs else 0.0


def discrepancy(a: Tensor, b: Tensor, gammas: Sequence[float]) -> Tensor:
    """Compute MMD^2 = mean k(a, a') + mean k(b, b') - 2 mean k(a, b), with k the sum of exp(-gamma |.|^2)."""

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        squares = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square()  # exactly 0 for equal rows
        return torch.stack([(-gamma * squares).exp().mean() for gamma in gammas]).sum()

    return kernel(a, a) + kernel(b, b) - 2 * kernel(a, b)
