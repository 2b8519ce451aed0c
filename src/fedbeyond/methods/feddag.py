"""FedDAG: Federated Domain Adversarial Generation Towards Generalizable Medical Image Analysis.

Che, Wu, Jin, Xia, Chen; 2025.

Sites train by NDAG: a generator makes novel styles against a student, and a teacher averages the student. The server
weights the teachers by SHA: the losses of their perturbed copies at all sites. Each half has its own file and can be
used alone: `ndag`, `fedavg+sha`.
"""

from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from ..method import BelowOne, Method
from ..optimizers import Optimizer, plain_sgd
from ..wrappers.sha import sha
from .ndag import Space, Statistics, ndag

PRESETS = {"paper": {"learn": "generated", "decay": 0.999, "rho": 1e-7}}


def feddag(
    alpha: NonNegativeFloat = 0.3,
    margin: NonNegativeFloat = 0.1,
    width: PositiveInt = 32,
    decay: BelowOne | None = None,
    kind: Literal[1, 2, 3] = 3,
    learn: Literal["generated", "both"] = "both",
    rho: NonNegativeFloat = 0.05,
    norm: Literal["linf", "l2"] = "l2",
    beta: NonNegativeFloat = 0.3,
    history: NonNegativeInt = 4,
    evaluators: PositiveInt | None = None,
    exclude_self: bool = False,
    warmup: NonNegativeInt = 5,
    statistics: Statistics = "local",
    space: Space = "imagenet",
    clamp: bool = False,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Train on generated novel styles (NDAG); weight models by their perturbed losses at all sites (SHA)."""
    local = ndag(alpha, margin, width, decay, kind, learn, warmup, statistics, space, clamp, optimizer)
    return sha(local, rho, norm, beta, history, evaluators, exclude_self, warmup)
