"""mixup: Beyond Empirical Risk Minimization.

Zhang, Cisse, Dauphin, Lopez-Paz; ICLR 2018; https://arxiv.org/abs/1710.09412

Each image of a batch is blended with another of the same site, and so are the labels, with a share from
Beta(alpha, alpha): the network learns to be uncertain between images.
"""

from typing import Annotated

import torch
from pydantic import NonNegativeFloat
from torch import Tensor
from torch.nn import functional as F

from .._method import Method
from ..batch import Batch
from ..client import Local, Term, training
from ..losses import cross_entropy
from ..optimizers import Optimizer, plain_sgd
from ..server import averaging

PRESETS = {"paper": {"alpha": 0.2}, "official": {"alpha": 1.0}}


def mixup(
    alpha: Annotated[NonNegativeFloat, "parameter of Beta(alpha, alpha), from which shares are drawn; 0: fedavg"] = 0.2,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Average models that learn from pairs of images, blended with their labels."""
    term = blended(alpha) if alpha else cross_entropy()
    return Method(client=training(term, optimizer=optimizer), server=averaging, linear_aggregation=True)


def blended(alpha: float) -> Term:
    """Return a loss: cross-entropy on x' = l x_i + (1 - l) x_j, with labels blended likewise; views count as images."""

    def term(local: Local, batch: Batch) -> Tensor:
        x, y = batch.merged
        rng = local.site.rng
        share = float(torch._sample_dirichlet(torch.tensor([alpha, alpha], dtype=torch.float64), rng)[0])
        partner = torch.randperm(len(y), generator=rng).to(y.device)
        logits = local.net(share * x + (1 - share) * x[partner])
        return share * F.cross_entropy(logits, y) + (1 - share) * F.cross_entropy(logits, y[partner])

    return term
