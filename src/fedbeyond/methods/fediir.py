"""Out-of-Distribution Generalization of Federated Learning via Implicit Invariant Relationships.

Guo, Guo, Cao, Wu, Chang; ICML 2023.

If a relationship between features and classes holds at every site, the gradient of the head is the same everywhere.
A round begins with each site's gradient of the head at the received model. The server keeps a moving average g of their
mean, and each site adds gamma * ||grad_head L_i - g||^2 to its loss: its features learn to make its gradient equal g.
"""

from typing import Annotated

import torch
from pydantic import NonNegativeFloat
from torch import Tensor
from torch.nn import functional as F

from .. import tree
from .._method import BelowOne, Method, Sent, also, parameters
from ..batch import Batch
from ..classifier import Classifier, statistics_kept, write
from ..client import Local, Term, training
from ..optimizers import Optimizer, plain_sgd
from ..server import Conversation, Request, Round, Server, mean, uniform
from ..site import Site
from ..tree import Tree
from .fedavg import fedavg

PRESETS = {"paper": {"gamma": 1e-3, "keep": 0.95}, "official": {"from_zero": True}}

HEAD = ("weight", "bias")  # the parameters of the head


def fediir(
    gamma: Annotated[NonNegativeFloat, "weight of the distance between head gradients, gamma; 0: fedavg"] = 1e-3,
    keep: Annotated[BelowOne, "share of g that is kept from round to round"] = 0.95,
    from_zero: Annotated[bool, "start with g = 0, not with the first mean gradient"] = False,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Pull each site's gradient of the head to a moving average of their mean over sites."""
    if not gamma:
        return fedavg("uniform", optimizer)

    def round(state: Tree, now: Round) -> Conversation:
        replies = yield Request("slope", {"model": state["model"]}, now.clients)
        new = mean(replies, "slope")  # weighted by images: the mean over all images
        old = state.get("slope", tree.zeros(new) if from_zero else new)
        slope = tree.add(tree.scale(keep, old), tree.scale(1 - keep, new))
        replies = yield Request("train", {"model": state["model"], "slope": slope}, now.clients)
        return {"model": mean(replies, "model"), "slope": slope}

    head = Sent(
        "parameters",
        lambda nets, body: {
            key: nets["model"]["params"][f"head.{key}"] for key in HEAD if f"head.{key}" in nets["model"]["params"]
        },
    )
    return Method(
        client=training(invariant(gamma), optimizer=optimizer).also(slope=measure),
        server=Server(lambda nets: nets, round),
        weighting=uniform,
        sends=also({"train": {"model": parameters("model")}}, "slope", slope=head),
        needs={"features"},
        linear_aggregation=True,
        inputs_unchanged=True,
    )


def slope_of(loss: Tensor, net: Classifier, create_graph: bool = False) -> Tree:
    """Compute the gradient of a loss with respect to the parameters of the head."""
    head = dict(net.head.named_parameters())
    return dict(zip(head, torch.autograd.grad(loss, list(head.values()), create_graph=create_graph), strict=True))


def measure(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
    """Send the gradient of the head at the received model, averaged over the site's images."""
    net = write(site.nets["model"], received["model"]).train()  # BatchNorm uses the batch, as it will in training
    assert isinstance(net, Classifier)
    slopes, sizes = [], []
    for batch in site.batches(1):
        x, y = batch.merged
        with torch.no_grad(), statistics_kept(net):
            h = net.features(x)
        slopes.append(slope_of(F.cross_entropy(net.head(h), y), net))
        sizes.append(float(len(y)))
    return {"slope": tree.mean(slopes, sizes)}, private


def invariant(gamma: float) -> Term:
    """Return a loss: cross-entropy, plus gamma times the squared distance of its gradient of the head from g."""

    def term(local: Local, batch: Batch) -> Tensor:
        x, y = batch.merged
        loss = F.cross_entropy(local.net(x), y)
        gap = tree.sub(slope_of(loss, local.net, create_graph=True), local.received["slope"])
        return loss + gamma * tree.dot(gap, gap)

    return term
