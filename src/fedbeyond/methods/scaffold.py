"""SCAFFOLD: Stochastic Controlled Averaging for Federated Learning.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh; ICML 2020; https://arxiv.org/abs/1910.06378

A control variate c_i estimates a site's gradient, c the mean gradient of all sites; each step follows g - c_i + c.
c_i+ = c_i - c + (w - w_i) / (a_i lr) (option II), or grad L_i(w) under Adam (option I); c += |S|/N * mean(c_i+ - c_i).
"""

from torch import Tensor

from .. import tree
from .._method import Method, parameters
from ..batch import Batch
from ..classifier import read
from ..client import Local, gradient, training, zero_params
from ..losses import cross_entropy
from ..optimizers import Optimizer, plain_sgd, travel
from ..server import Conversation, Request, Round, Server, mean, uniform
from ..tree import Tree

PRESETS: dict[str, Tree] = {"paper": {}}  # the authors published no code


def scaffold(optimizer: Optimizer = plain_sgd) -> Method:
    """Correct the drift of local training by two control variates: one kept at the site, one shared by all."""
    client = training(cross_entropy(), correction, optimizer=optimizer, init=zero_params("control"), finish=new_control)
    sends = {"train": {"model": parameters("model"), "control": parameters("model", "params")._replace(since=())}}
    return Method(
        client=client,
        server=Server(lambda nets: nets | {"control": tree.zeros(nets["model"]["params"])}, round),
        weighting=uniform,
        sends=sends,  # not the control, but its change
        keeps={"control"},
        linear_aggregation=True,
        inputs_unchanged=True,
    )


def correction(local: Local, batch: Batch) -> Tensor:
    """Return a linear loss term, whose gradient is c - c_i."""
    return tree.dot(tree.sub(local.received["control"], local.private["control"]), local.params)


def new_control(local: Local) -> tuple[Tree, Tree]:
    """Send the model and the change of the site's control variate; keep the new control variate."""
    model, control = read(local.net), local.private["control"]
    if distance := travel(local.optimizer, local.steps):  # option II; with momentum, a_i instead of the steps
        slope = tree.scale(1 / distance, tree.sub(local.start, model["params"]))
        new = tree.add(tree.sub(control, local.received["control"]), slope)
    else:
        new = gradient(local, cross_entropy())  # option I
    return {"model": model, "control": tree.sub(new, control)}, {"control": new}


def round(state: Tree, now: Round) -> Conversation:
    """Average the models, and move the shared control variate by the mean change times |S|/N."""
    replies = yield Request("train", state, now.clients)
    change = tree.mean([r.body["control"] for r in replies], [1.0] * len(replies))  # uniform under any weighting
    control = tree.add(state["control"], tree.scale(len(replies) / len(now.enrolled), change))
    return {"model": mean(replies, "model"), "control": control}
