"""FedDAG: Federated Domain Adversarial Generation Towards Generalizable Medical Image Analysis.

Che, Wu, Jin, Xia, Chen; 2025.

Sites train by NDAG: a generator makes novel styles against a student, and a teacher averages the student. The server
weights the teachers by SHA: the losses of their perturbed copies at all sites. Each half has its own file and can be
used alone: `ndag`, `fedavg+sha`.
"""

from typing import Annotated, Literal

from pydantic import Field

from ..method import Method
from ..optimizers import Optimizer, plain_sgd
from ..wrappers.sha import sha
from .ndag import Space, Statistics, ndag

PRESETS = {"paper": {"learn": "generated", "decay": 0.999, "rho": 1e-7}}

Number = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]


def feddag(
    alpha: Number = 0.3,
    margin: Number = 0.1,
    width: Annotated[int, Field(gt=0)] = 32,
    decay: Annotated[float, Field(ge=0, lt=1)] | None = None,
    kind: Literal[1, 2, 3] = 3,
    learn: Literal["generated", "both"] = "both",
    rho: Number = 0.05,
    norm: Literal["linf", "l2"] = "l2",
    beta: Number = 0.3,
    history: Count = 4,
    evaluators: Annotated[int, Field(gt=0)] | None = None,
    exclude_self: bool = False,
    warmup: Count = 5,
    statistics: Statistics = "local",
    space: Space = "imagenet",
    clamp: bool = False,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Train on generated novel styles (NDAG); weight models by their perturbed losses at all sites (SHA)."""
    local = ndag(alpha, margin, width, decay, kind, learn, warmup, statistics, space, clamp, optimizer)
    return sha(local, rho, norm, beta, history, evaluators, exclude_self, warmup)
