"""Principles of Risk Minimization for Learning Theory.

Vapnik; NeurIPS 1991.

Ordinary training on the data of all sites, pooled in one place: a reference, not a federation. It shows what
can be reached by who may see everything but the unseen domain; a federated method that comes near has done well.
"""

from torch import Tensor

from ..batch import Batch
from ..client import training
from ..losses import cross_entropy
from ..method import Method
from ..optimizers import Optimizer, plain_sgd
from ..server import averaging
from ..tree import Tree

PRESETS: dict[str, Tree] = {}


def erm(optimizer: Optimizer = plain_sgd) -> Method:
    """Ordinary training on all sources pooled."""
    return Method(client=training(cross_entropy(), optimizer=optimizer), server=averaging, weighting=None, pooled=True)


def domains(batch: Batch, least: int = 1) -> list[Tensor]:
    """Where in a batch the images of each domain are, views too, for those that have `least` of them or more.

    For the references that look at domains apart: a batch of the pool may hold few images of one, or none.
    """
    origins = batch.origins
    places = [(origins == number).nonzero().flatten() for number in origins.unique()]
    return [place for place in places if len(place) >= least]
