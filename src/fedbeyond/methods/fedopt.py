"""Adaptive Federated Optimization.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan; ICLR 2021; https://arxiv.org/abs/2003.00295

The server uses the mean drift of the sites, D, as a gradient, with a separate step size for each parameter:
m <- beta1 m + (1 - beta1) D,  w <- w + rate * m / (sqrt(v) + tau), where v follows D^2 as in Adam, Yogi or Adagrad.
"""

from collections.abc import Callable
from typing import Annotated

import torch
from pydantic import PositiveFloat
from torch import Tensor

from .. import tree
from .._method import BelowOne, Method
from ..client import training
from ..losses import cross_entropy
from ..optimizers import Optimizer, plain_sgd
from ..server import Conversation, Request, Round, Server, mean
from ..tree import Tree

PRESETS = {"paper": {"tau": 1e-3}}

Rate = Annotated[PositiveFloat, "learning rate of the server, eta"]
Beta1 = Annotated[BelowOne, "decay of the mean drift m, beta1"]
Beta2 = Annotated[BelowOne, "decay of the squares v, beta2"]
Tau = Annotated[PositiveFloat, "added to sqrt(v), tau; the smaller, the more adaptive"]
Follow = Callable[[Tensor, Tensor], Tensor]  # (v, D^2) -> the next v


def fedadam(
    rate: Rate = 0.03, beta1: Beta1 = 0.9, beta2: Beta2 = 0.99, tau: Tau = 1e-3, optimizer: Optimizer = plain_sgd
) -> Method:
    """Apply Adam on the server to the mean drift of the sites."""
    return adaptive(lambda v, square: beta2 * v + (1 - beta2) * square, rate, beta1, tau, optimizer)


def fedyogi(
    rate: Rate = 0.03, beta1: Beta1 = 0.9, beta2: Beta2 = 0.99, tau: Tau = 1e-3, optimizer: Optimizer = plain_sgd
) -> Method:
    """Apply Yogi on the server: as Adam, but step sizes grow back slowly after large drifts."""
    return adaptive(lambda v, square: v - (1 - beta2) * square * (v - square).sign(), rate, beta1, tau, optimizer)


def fedadagrad(rate: Rate = 0.03, beta1: Beta1 = 0.0, tau: Tau = 1e-3, optimizer: Optimizer = plain_sgd) -> Method:
    """Apply Adagrad on the server: step sizes only shrink."""
    return adaptive(torch.add, rate, beta1, tau, optimizer)


def adaptive(follow: Follow, rate: float, beta1: float, tau: float, optimizer: Optimizer) -> Method:
    """Build FedAvg with a server that moves the model by an adaptive step along the mean drift."""

    def round(state: Tree, now: Round) -> Conversation:  # Algorithm 2
        replies = yield Request("train", {"model": state["model"]}, now.clients)
        model, start = mean(replies, "model"), state["model"]["params"]
        drift = tree.sub(model["params"], start)
        speed = tree.add(tree.scale(beta1, state["speed"]), tree.scale(1 - beta1, drift))
        squares = tree.map(lambda v, d: follow(v, d.square()), state["squares"], drift)
        step = tree.map(lambda m, v: rate * m / (v.sqrt() + tau), speed, squares)
        return {"model": model | {"params": tree.add(start, step)}, "speed": speed, "squares": squares}

    def init(nets: Tree) -> Tree:  # v_0 = tau^2
        zeros = tree.zeros(nets["model"]["params"])
        return nets | {"speed": zeros, "squares": tree.map(lambda leaf: torch.full_like(leaf, tau**2), zeros)}

    return Method(
        client=training(cross_entropy(), optimizer=optimizer),
        server=Server(init, round),
        linear_aggregation=True,
        inputs_unchanged=True,
    )
