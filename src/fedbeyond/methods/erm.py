"""Principles of Risk Minimization for Learning Theory.

Vapnik; NeurIPS 1991.

Ordinary training on the pooled data of all sites: a reference, not a federated method. It shows what can be reached
with access to all source data; a good federated method comes close to it.
"""

from torch import Tensor

from .._method import Method
from ..batch import Batch
from ..client import training
from ..losses import cross_entropy
from ..optimizers import Optimizer, plain_sgd
from ..server import averaging


def erm(optimizer: Optimizer = plain_sgd) -> Method:
    """Train on the pooled data of all source domains by cross-entropy."""
    return Method(
        client=training(cross_entropy(), optimizer=optimizer),
        server=averaging,
        weighting=None,
        pooled=True,
        inputs_unchanged=True,
    )


def domains(batch: Batch, least: int = 1) -> list[Tensor]:
    """Return the indices in a batch of each domain's images (views included), for domains with `least` or more.

    Used by pooled references that compare domains: a pooled batch may hold few images of a domain, or none.
    """
    origins = batch.origins
    groups = [(origins == number).nonzero().flatten() for number in origins.unique()]
    return [indices for indices in groups if len(indices) >= least]
