"""Federated Domain Generalization with Label Smoothing and Balanced Decentralized Training.

Soltany, Pourpanah, Molahasani, Greenspan, Etemad; 2024.

Each site smooths its labels, so that it is not over-confident on its own domain. All sites train on the same number
of batches a round, whatever their size, so that no domain counts more. The average is uniform.
"""

from typing import Annotated

from pydantic import PositiveInt

from .._method import Method, Share
from ..batch import balanced, shuffled
from ..client import training
from ..losses import cross_entropy
from ..optimizers import Optimizer, plain_sgd
from ..server import averaging, uniform

PRESETS = {
    "paper": {"smoothing": 0.1, "budget": 30},
    "official": {"smoothing": 0.01, "budget": 45, "fresh": False},
}


def fedsb(
    smoothing: Annotated[Share, "label smoothing, epsilon in Eqs. 1-3"] = 0.1,
    budget: Annotated[PositiveInt | None, "batches a round at every site; none: all its images"] = 30,
    fresh: Annotated[bool, "draw other images in each round"] = True,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Smooth labels, and train on `budget` batches a round at every site."""
    return Method(
        client=training(cross_entropy(smoothing), optimizer=optimizer),  # Eqs. 1-3
        sampler=balanced(budget, fresh) if budget else shuffled,
        server=averaging,
        weighting=uniform,  # Eq. 8
        linear_aggregation=True,
        inputs_unchanged=True,
    )
