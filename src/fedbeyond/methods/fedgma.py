"""Gradient Masked Averaging for Federated Learning.

Tenison, Sreeramadas, Mugunthan, Oyallon, Rish, Belilovsky; TMLR 2023; https://arxiv.org/abs/2201.11986

A parameter that all sites move the same way is taken to follow what is common to them, and moves by the mean; where
fewer than a share tau agree, the move is scaled down by the agreement A = |mean sign(w_i - w)|.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from .. import tree
from ..client import training
from ..losses import cross_entropy
from ..method import Method
from ..optimizers import Optimizer, plain_sgd
from ..server import Conversation, Request, Round, Server, mean
from ..tree import Tree

PRESETS: dict[str, Tree] = {"paper": {}}


def fedgma(
    tau: Annotated[float, Field(ge=0, le=1)] = 0.4,
    rate: Annotated[float, Field(gt=0)] = 1.0,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """The mean of the sites' moves, less of it where fewer than `tau` agree on the sign; `rate` of it is taken."""

    def masked(move: Tensor, *moves: Tensor) -> Tensor:
        agreed = torch.stack([one.sign() for one in moves]).mean(0).abs()  # A
        return rate * torch.where(agreed >= tau, 1.0, agreed) * move

    def round(state: Tree, now: Round) -> Conversation:
        replies = yield Request("train", state, now.clients)
        model, start = mean(replies, "model"), state["model"]["params"]
        moves = [tree.sub(reply.body["model"]["params"], start) for reply in replies]
        move = tree.map(masked, tree.mean(moves, [reply.weight for reply in replies]), *moves)
        return {"model": model | {"params": tree.add(start, move)}}  # running statistics are no moves: their mean

    return Method(client=training(cross_entropy(), optimizer=optimizer), server=Server(lambda nets: nets, round))
