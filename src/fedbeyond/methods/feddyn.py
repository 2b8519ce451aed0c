"""Federated Learning Based on Dynamic Regularization.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama; ICLR 2021; https://arxiv.org/abs/2111.04263

Each site keeps the gradient of its own loss at its last local optimum, h_i; the server keeps their mean, h. A site
minimises L_i - <h_i, w> + alpha/2 ||w - w_t||^2; at a fixed point all sites' optima equal that of their mean loss.
Then h_i -= alpha (w_i - w_t),  h -= alpha/N sum (w_i - w_t),  w = mean w_i - h/alpha.
"""

from typing import Annotated, Literal

from pydantic import PositiveFloat
from torch import Tensor

from .. import tree
from .._method import Method
from ..batch import Batch
from ..classifier import read
from ..client import Local, training, zero_params
from ..losses import cross_entropy
from ..optimizers import Optimizer, plain_sgd
from ..server import Conversation, Request, Round, Server, mean, uniform
from ..tree import Tree

PRESETS = {"paper": {"alpha": 0.01, "output": "corrected"}, "official": {"alpha": 0.01}}


def feddyn(
    alpha: Annotated[PositiveFloat, "strength of the dynamic regulariser, alpha in Eq. 1"] = 0.1,
    output: Annotated[Literal["mean", "corrected"], "global model: mean of the sites', or minus h / alpha"] = "mean",
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Regularise local losses by a linear and a proximal term, updated each round until all optima agree."""

    def regulariser(local: Local, batch: Batch) -> Tensor:  # Eq. 1
        drift = tree.sub(local.params, local.start)
        return alpha / 2 * tree.dot(drift, drift) - tree.dot(local.private["slope"], local.params)

    def new_slope(local: Local) -> tuple[Tree, Tree]:
        model = read(local.net)
        drift = tree.sub(model["params"], local.start)
        return {"model": model}, {"slope": tree.sub(local.private["slope"], tree.scale(alpha, drift))}

    def round(state: Tree, now: Round) -> Conversation:  # Algorithm 1
        start = state["start"]
        body = {"model": state["model"]} | ({"start": start} if output == "mean" else {})
        replies = yield Request("train", body, now.clients)
        model = mean(replies, "model")
        moved = tree.mean([r.own["model"]["params"] for r in replies], [1.0] * len(replies))  # always uniform
        factor = alpha * len(replies) / len(now.enrolled)
        slope = tree.sub(state["slope"], tree.scale(factor, tree.sub(moved, start)))
        corrected = tree.sub(model["params"], tree.scale(1 / alpha, slope))
        result = model if output == "mean" else model | {"params": corrected}
        return {"model": result, "start": corrected, "slope": slope}

    init = zero_params("slope")  # h_i = 0
    client = training(cross_entropy(), regulariser, optimizer=optimizer, init=init, finish=new_slope)
    server = Server(with_slope, round)
    return Method(
        client=client, server=server, weighting=uniform, keeps={"slope"}, linear_aggregation=True, inputs_unchanged=True
    )


def with_slope(nets: Tree) -> Tree:
    """Return the initial server state: the networks, the parameters that sites start from, and h = 0."""
    params = nets["model"]["params"]
    return nets | {"start": params, "slope": tree.zeros(params)}
