"""Generalized Federated Learning via Sharpness Aware Minimization.

Qu, Li, Duan, Liu, Tang, Lu; ICML 2022; https://arxiv.org/abs/2206.02618

FedAvg whose sites search for flat minima: each step uses the gradient at the point rho uphill of the site's model.
Caldarola, Caputo and Ciccone (ECCV 2022) propose the same method under the same name.
"""

from typing import Annotated

from pydantic import NonNegativeFloat

from .._method import Method
from ..optimizers import Optimizer, plain_sgd, sharp
from .fedavg import fedavg

PRESETS = {"paper": {"rho": 0.1}}


def fedsam(
    rho: Annotated[NonNegativeFloat, "radius of the ascent step of SAM, rho"] = 0.05, optimizer: Optimizer = plain_sgd
) -> Method:
    """Average models that are trained by SAM, which wraps the optimizer of the run."""
    return fedavg(optimizer=sharp(optimizer, rho))
