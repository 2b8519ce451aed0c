"""FedDAG: Federated Domain Adversarial Generation Towards Generalizable Medical Image Analysis.

Che, Wu, Jin, Xia, Chen; 2025.

Sites train by NDAG: a generator makes novel styles against a student, and a teacher averages the student. The server
weights the teachers by SHA: the losses of their perturbed copies at all sites. Each half has its own file and can be
used alone: `ndag`, `fedavg+sha`.
"""

from typing import Annotated

from pydantic import NonNegativeInt

from .._method import Method
from ..optimizers import Optimizer, plain_sgd
from ..wrappers.sha import Beta, Evaluators, ExcludeSelf, History, Norm, Rho, sha
from .ndag import Alpha, Clamp, Decay, Kind, Learn, Margin, Space, Statistics, Width, ndag

PRESETS = {"paper": {"learn": "generated", "decay": 0.999, "rho": 1e-7}}


def feddag(
    alpha: Alpha = 0.3,
    margin: Margin = 0.1,
    width: Width = 32,
    decay: Decay = None,
    kind: Kind = 3,
    learn: Learn = "both",
    rho: Rho = 0.05,
    norm: Norm = "l2",
    beta: Beta = 0.3,
    history: History = 4,
    evaluators: Evaluators = None,
    exclude_self: ExcludeSelf = False,
    warmup: Annotated[NonNegativeInt, "first rounds, with original images only, equal weights, no earlier models"] = 5,
    statistics: Statistics = "local",
    space: Space = "imagenet",
    clamp: Clamp = False,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Train on generated novel styles (NDAG); weight models by their perturbed losses at all sites (SHA)."""
    local = ndag(alpha, margin, width, decay, kind, learn, warmup, statistics, space, clamp, optimizer)
    return sha(local, rho, norm, beta, history, evaluators, exclude_self, warmup)
