"""Domain Generalization with Adversarial Feature Learning.

Li, Pan, Wang, Kot; CVPR 2018.

Of the paper's method the part by which it is known as a reference: features of all source domains should have one
distribution, and how far two are apart is told by the maximum mean discrepancy, with Gaussian kernels of many widths.
A reference, not a federation: it needs images of several domains in one batch.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from typing import Annotated, cast

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from ..batch import Batch
from ..classifier import Classifier
from ..client import Local, Term, training
from ..method import Method
from ..optimizers import Optimizer, plain_sgd
from ..server import averaging
from ..tree import Tree
from .erm import domains

PRESETS: dict[str, Tree] = {"domainbed": {}}

Distance = Callable[[Tensor, Tensor], Tensor]  # between the features of two domains


def mmd(
    weight: Annotated[float, Field(ge=0)] = 1.0,
    gammas: Sequence[Annotated[float, Field(gt=0)]] = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0),
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Pooled training, with features of all domains drawn to one distribution."""
    if not gammas:
        raise ValueError("gammas=[] leaves no kernel; give one or more, as in gammas=[0.1, 1]")
    client = training(aligned(weight, partial(discrepancy, gammas=gammas)), optimizer=optimizer)
    return Method(client=client, server=averaging, weighting=None, pooled=True, least=2)


def aligned(weight: float, distance: Distance) -> Term:
    """Cross-entropy, plus `weight` times how far the features of the domains in a batch are apart."""

    def term(local: Local, batch: Batch) -> Tensor:
        x, y = batch.merged
        net = cast(Classifier, local.net)
        features = net.features(x)
        apart = between([features[place] for place in domains(batch, least=2)], distance)
        return F.cross_entropy(net.head(features), y) + weight * apart

    return term


def between(groups: list[Tensor], distance: Distance) -> Tensor | float:
    """The mean distance of two domains; none where there are no two."""
    pairs = [distance(one, other) for one, other in combinations(groups, 2)]
    return torch.stack(pairs).mean() if pairs else 0.0


def discrepancy(one: Tensor, other: Tensor, gammas: Sequence[float]) -> Tensor:
    """MMD^2 = mean k(a, a') + mean k(b, b') - 2 mean k(a, b), with k the sum of exp(-gamma |.|^2)."""

    def likeness(a: Tensor, b: Tensor) -> Tensor:
        far = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square()  # exact where a is b
        return torch.stack([(-gamma * far).exp().mean() for gamma in gammas]).sum()

    return likeness(one, one) + likeness(other, other) - 2 * likeness(one, other)
