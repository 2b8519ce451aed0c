"""SCAFFOLD: Stochastic Controlled Averaging for Federated Learning.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh; ICML 2020; https://arxiv.org/abs/1910.06378

A control variate c_i remembers where a site's gradients point, c where all do; each step follows g - c_i + c.
c_i+ = c_i - c + (w - w_i) / (a_i lr) (option II), or grad L_i(w) under Adam (option I); c += |S|/N * mean(c_i+ - c_i).
"""

from torch import Tensor

from .. import tree
from ..batch import Batch
from ..classifier import read
from ..client import Local, gradient, training
from ..losses import cross_entropy
from ..method import Method, parameters
from ..optimizers import Optimizer, plain_sgd, travel
from ..server import Conversation, Request, Round, Server, mean, uniform
from ..site import Site
from ..tree import Tree

PRESETS: dict[str, Tree] = {"paper": {}}  # the authors published no code


def scaffold(optimizer: Optimizer = plain_sgd) -> Method:
    """Two control variates, one kept at the site, one shared, against the drift of local training."""
    client = training(cross_entropy(), correction, optimizer=optimizer, init=no_control, finish=new_control)
    change = parameters("model", "params")._replace(since=())  # of the site's control: a step already
    sends = {"train": {"model": parameters("model"), "control": change}}
    return Method(client=client, server=Server(with_control, round), weighting=uniform, sends=sends, sums=True)


def no_control(site: Site) -> Tree:
    return {"control": tree.zeros(read(site.nets["model"])["params"])}


def with_control(nets: Tree) -> Tree:
    return nets | {"control": tree.zeros(nets["model"]["params"])}


def correction(local: Local, batch: Batch) -> Tensor:  # a linear term: its gradient is c - c_i
    shift = tree.sub(local.received["control"], local.private["control"])
    return tree.dot(shift, local.params)


def new_control(local: Local) -> tuple[Tree, Tree]:
    model, old = read(local.net), local.private["control"]
    if travelled := travel(local.stepper, local.steps):  # option II; with momentum, a_i instead of the steps
        slope = tree.scale(1 / travelled, tree.sub(local.start, model["params"]))
        control = tree.add(tree.sub(old, local.received["control"]), slope)
    else:
        control = gradient(local, cross_entropy())  # option I
    return {"model": model, "control": tree.sub(control, old)}, {"control": control}


def round(state: Tree, now: Round) -> Conversation:
    replies = yield Request("train", state, now.clients)
    changes = tree.mean([r.body["control"] for r in replies], [1.0] * len(replies))  # 1/|S| each, whoever weighs models
    control = tree.add(state["control"], tree.scale(len(replies) / len(now.enrolled), changes))
    return {"model": mean(replies, "model"), "control": control}
