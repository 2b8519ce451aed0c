"""Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification.

Hsu, Qi, Brown; 2019; https://arxiv.org/abs/1909.06335

FedAvgM: the server uses the mean update of the sites as a gradient, with momentum:
v <- momentum * v + sum p_i (w_i - w),  w <- w + rate * v.
"""

from typing import Annotated

from pydantic import PositiveFloat

from .. import tree
from .._method import BelowOne, Method
from ..client import training
from ..losses import cross_entropy
from ..optimizers import Optimizer, plain_sgd
from ..server import Conversation, Request, Round, Server, mean
from ..tree import Tree

PRESETS = {"paper": {"momentum": 0.9, "rate": 1.0}}


def fedavgm(
    momentum: Annotated[BelowOne, "momentum of the server's update, m"] = 0.9,
    rate: Annotated[PositiveFloat, "learning rate of the server, eta"] = 1.0,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Average the models with momentum on the server."""

    def round(state: Tree, now: Round) -> Conversation:
        replies = yield Request("train", {"model": state["model"]}, now.clients)
        model, start = mean(replies, "model"), state["model"]["params"]
        drift = tree.sub(model["params"], start)
        speed = tree.add(tree.scale(momentum, state["speed"]), drift)
        return {"model": model | {"params": tree.add(start, tree.scale(rate, speed))}, "speed": speed}

    return Method(
        client=training(cross_entropy(), optimizer=optimizer),
        server=Server(lambda nets: nets | {"speed": tree.zeros(nets["model"]["params"])}, round),
        linear_aggregation=True,
        inputs_unchanged=True,
    )
