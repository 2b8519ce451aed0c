"""Optimizers as functions: given parameters they return a torch optimizer, fresh in every round."""

from collections.abc import Callable, Iterable

import torch
from torch import nn

Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def sgd(lr: float = 0.05, momentum: float = 0.0, weight_decay: float = 0.0) -> Optimizer:
    """Stochastic gradient descent."""
    return lambda params: torch.optim.SGD(params, lr=lr, momentum=momentum, weight_decay=weight_decay)


def adam(lr: float = 1e-3, weight_decay: float = 0.0) -> Optimizer:
    """Adam with torch's moments."""
    return lambda params: torch.optim.Adam(params, lr=lr, weight_decay=weight_decay)


plain_sgd = sgd()


def reach(stepper: torch.optim.Optimizer, steps: int, pull: float = 0.0) -> float:
    """How far a constant gradient of one would have carried a parameter, in learning rates.

    This is the 1-norm of FedNova's a_i: the number of steps for plain SGD and for Adam, more with momentum,
    less when a proximal term of strength `pull` draws the parameter back.
    """
    group = stepper.param_groups[0]
    moved = speed = 0.0
    for _ in range(steps):
        speed = group.get("momentum", 0.0) * speed + 1 - group["lr"] * pull * moved
        moved += speed
    return moved
