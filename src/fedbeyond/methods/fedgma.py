"""Gradient Masked Averaging for Federated Learning.

Tenison, Sreeramadas, Mugunthan, Oyallon, Rish, Belilovsky; TMLR 2023; https://arxiv.org/abs/2201.11986

A parameter whose updates have the same sign at all sites moves by their mean: such an update is assumed to follow what
the sites have in common. Where the agreement A = |mean sign(w_i - w)| is below tau, the mean update is multiplied by A.
"""

from typing import Annotated

import torch
from pydantic import PositiveFloat
from torch import Tensor

from .. import tree
from .._method import Method, Share
from ..client import training
from ..losses import cross_entropy
from ..optimizers import Optimizer, plain_sgd
from ..server import Conversation, Request, Round, Server, mean
from ..tree import Tree

PRESETS: dict[str, Tree] = {"paper": {}}


def fedgma(
    tau: Annotated[Share, "agreement of signs from which an update is not damped, tau"] = 0.4,
    rate: Annotated[PositiveFloat, "learning rate of the server"] = 1.0,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Average the sites' updates, damped where their signs agree less than `tau`."""

    def masked(mean_update: Tensor, *updates: Tensor) -> Tensor:
        agreed = torch.stack([update.sign() for update in updates]).mean(0).abs()  # A
        return rate * torch.where(agreed >= tau, 1.0, agreed) * mean_update

    def round(state: Tree, now: Round) -> Conversation:
        replies = yield Request("train", state, now.clients)
        model, start = mean(replies, "model"), state["model"]["params"]
        updates = [tree.sub(reply.body["model"]["params"], start) for reply in replies]
        step = tree.map(masked, tree.mean(updates, [reply.weight for reply in replies]), *updates)
        return {"model": model | {"params": tree.add(start, step)}}  # running statistics: the mean, not masked

    return Method(
        client=training(cross_entropy(), optimizer=optimizer),
        server=Server(lambda nets: nets, round),
        inputs_unchanged=True,
    )
