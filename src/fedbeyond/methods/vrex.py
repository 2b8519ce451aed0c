"""Out-of-Distribution Generalization via Risk Extrapolation (REx).

Krueger, Caballero, Jacobsen, Zhang, Binas, Zhang, Le Priol, Courville; ICML 2021; https://arxiv.org/abs/2003.00688

If the risks of the source domains are equal, they should stay equal in domains beyond them. The variance of the risks
is added to the loss (V-REx). A pooled reference: it needs images of several domains in one batch.
"""

from typing import Annotated

import torch
from pydantic import NonNegativeFloat
from torch import Tensor
from torch.nn import functional as F

from .._method import Method
from ..batch import Batch
from ..optimizers import Optimizer, plain_sgd
from .erm import domains
from .irm import Anneal, Rescale, penalised

PRESETS = {"official": {"weight": 1e4, "anneal": 0.2}, "domainbed": {"rescale": False}}


def vrex(
    weight: Annotated[NonNegativeFloat, "weight of the variance, beta"] = 10.0,
    anneal: Anneal = 0.1,
    rescale: Rescale = True,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Train on pooled data, with a penalty on the variance of the domains' risks."""
    return penalised("vrex", variance, weight, anneal, rescale, optimizer)


def variance(logits: Tensor, y: Tensor, batch: Batch) -> Tensor:
    """Compute the variance of the risks of the domains in a batch."""
    risks = torch.stack([F.cross_entropy(logits[index], y[index]) for index in domains(batch)])
    return risks.var(correction=0)
