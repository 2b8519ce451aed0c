"""Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization.

Wang, Liu, Liang, Joshi, Poor; NeurIPS 2020; https://arxiv.org/abs/2007.07481

A site that takes more steps pulls the average further towards its own optimum. Each site therefore sends how far its
steps reach (a_i). The server averages the drifts per unit of reach and multiplies them by the mean reach:
w + tau_eff * sum p_i (w_i - w) / a_i. A proximal term shortens a_i; tau_eff is the mean reach without that term.
"""

import math
from typing import Annotated

import torch
from pydantic import NonNegativeFloat

from .. import tree
from .._method import Method, parameters, positive
from ..classifier import read
from ..client import Local, training
from ..errors import ConfigError
from ..losses import cross_entropy, proximal
from ..optimizers import Optimizer, plain_sgd, reach
from ..server import Conversation, Request, Round, Server, mean
from ..tree import Tree

PRESETS: dict[str, Tree] = {"paper": {}, "official": {}}


def fednova(
    mu: Annotated[NonNegativeFloat, "strength of a proximal term, mu; 0: none"] = 0.0, optimizer: Optimizer = plain_sgd
) -> Method:
    """Average drifts per step, so that sites with more steps do not count more."""

    def upload_with_reach(local: Local) -> tuple[Tree, Tree]:
        reached = reach(local.optimizer, local.steps, pull=mu)
        if not 0 < reached < math.inf:
            rate = local.optimizer.param_groups[0]["lr"]
            raise ConfigError(
                f"fednova: at learning rate {rate:g} the proximal term mu={mu:g} overshoots: {local.steps} steps "
                f"have a reach of {reached:g}, not above 0; use mu well below 1/lr = {1 / rate:g}, or a smaller lr"
            )
        counts = {"reach": torch.tensor(reached), "pace": torch.tensor(reach(local.optimizer, local.steps))}
        return {"model": read(local.net)} | counts, local.private

    terms = (cross_entropy(), proximal(mu)) if mu else (cross_entropy(),)
    sends = {"train": {"model": parameters("model"), "reach": positive, "pace": positive}}
    client = training(*terms, optimizer=optimizer, finish=upload_with_reach)
    return Method(client=client, server=Server(lambda nets: nets, round), sends=sends, inputs_unchanged=True)


def round(state: Tree, now: Round) -> Conversation:
    """Train at all sites and move the model by tau_eff times the weighted mean of the drifts per unit of reach."""
    replies = yield Request("train", state, now.clients)
    pace, start = mean(replies, "pace"), state["model"]["params"]
    drifts = [tree.scale(pace / r.body["reach"], tree.sub(r.body["model"]["params"], start)) for r in replies]
    drift = tree.mean(drifts, [r.weight for r in replies])
    return {"model": mean(replies, "model") | {"params": tree.add(start, drift)}}
