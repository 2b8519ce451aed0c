"""Federated Optimization in Heterogeneous Networks.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith; MLSys 2020; https://arxiv.org/abs/1812.06127

FedAvg, with mu/2 * ||w_i - w||^2 added to each site's loss, so that no site strays far from what it received.
"""

from ..client import training
from ..losses import cross_entropy, proximal
from ..method import Method
from ..optimizers import Optimizer, plain_sgd
from ..server import averaging

PRESETS = {"paper": {"mu": 0.01}, "official": {"mu": 0.1}}


def fedprox(mu: float = 0.01, optimizer: Optimizer = plain_sgd) -> Method:
    """Averaging with a pull back to the received model."""
    return Method(client=training(cross_entropy(), proximal(mu), optimizer=optimizer), server=averaging, sums=True)
