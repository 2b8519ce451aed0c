"""Federated Optimization in Heterogeneous Networks.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith; MLSys 2020; https://arxiv.org/abs/1812.06127

FedAvg, with mu/2 * ||w_i - w||^2 added to each site's loss, so that no site moves far from the received model.
"""

from typing import Annotated

from pydantic import NonNegativeFloat

from .._method import Method
from ..client import training
from ..losses import cross_entropy, proximal
from ..optimizers import Optimizer, plain_sgd
from ..server import averaging

PRESETS = {"paper": {"mu": 0.01}, "official": {"mu": 0.1}}


def fedprox(
    mu: Annotated[NonNegativeFloat, "strength of the proximal term, mu in Eq. 2"] = 0.01,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Average models that are trained with a proximal term, which keeps them near the received model."""
    return Method(
        client=training(cross_entropy(), proximal(mu), optimizer=optimizer),
        server=averaging,
        linear_aggregation=True,
        inputs_unchanged=True,
    )
