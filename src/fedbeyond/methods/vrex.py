"""Out-of-Distribution Generalization via Risk Extrapolation (REx).

Krueger, Caballero, Jacobsen, Zhang, Binas, Zhang, Le Priol, Courville; ICML 2021; https://arxiv.org/abs/2003.00688

If the risks of the source domains are equal, they should stay equal in domains beyond them. The variance of the risks
is added to the loss (V-REx). A pooled reference: it needs images of several domains in one batch.
"""

import torch
from pydantic import NonNegativeFloat
from torch import Tensor
from torch.nn import functional as F

from ..batch import Batch
from ..client import training
from ..method import Method, Share
from ..optimizers import Optimizer, plain_sgd
from ..server import averaging
from .erm import domains
from .irm import annealed, penalised, upload_and_count, zero_rounds

PRESETS = {"official": {"weight": 1e4, "anneal": 0.2}, "domainbed": {"rescale": False}}


def vrex(
    weight: NonNegativeFloat = 10.0,
    anneal: Share = 0.1,
    rescale: bool = True,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Train on pooled data, with a penalty on the variance of the domains' risks."""
    term = penalised(variance, weight, anneal, rescale)
    client = training(term, optimizer=optimizer, init=zero_rounds, finish=upload_and_count)
    return Method(
        client=client,
        server=averaging,
        weighting=None,
        keeps={"played"},
        uses_total=annealed("vrex", weight, anneal),
        pooled=True,
        min_clients=2,
    )


def variance(logits: Tensor, y: Tensor, batch: Batch) -> Tensor:
    """Compute the variance of the risks of the domains in a batch."""
    risks = torch.stack([F.cross_entropy(logits[index], y[index]) for index in domains(batch)])
    return risks.var(correction=0)
