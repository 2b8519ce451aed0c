"""Federated Domain Generalization with Label Smoothing and Balanced Decentralized Training.

Soltany, Pourpanah, Molahasani, Greenspan, Etemad; 2024.

Each site smooths its labels, so that it is not over-confident on its own domain. All sites train on the same number
of batches a round, whatever their size, so that no domain counts more. The average is uniform.
"""

from pydantic import PositiveInt

from ..batch import balanced, shuffled
from ..client import training
from ..losses import cross_entropy
from ..method import Method, Share
from ..optimizers import Optimizer, plain_sgd
from ..server import averaging, uniform

PRESETS = {
    "paper": {"smoothing": 0.1, "budget": 30},
    "official": {"smoothing": 0.01, "budget": 45, "fresh": False},
}


def fedsb(
    smoothing: Share = 0.1,
    budget: PositiveInt | None = 30,
    fresh: bool = True,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Smooth labels, and train on `budget` batches a round at every site (none: on all its images)."""
    return Method(
        client=training(cross_entropy(smoothing), optimizer=optimizer),  # Eqs. 1-3
        sampler=balanced(budget, fresh) if budget else shuffled,
        server=averaging,
        weighting=uniform,  # Eq. 8
        linear_aggregation=True,
    )
