"""Out-of-Distribution Generalization of Federated Learning via Implicit Invariant Relationships.

Guo, Guo, Cao, Wu, Chang; ICML 2023.

Where a relationship between features and classes holds at every site, every site wants the same change of the head.
A round begins with each site's gradient of the head at the received model; the server follows their mean g, and each
site adds gamma * ||grad_head L_i - g||^2 to its loss, so that its features make its own gradient like that of all.
"""

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from .. import tree
from ..batch import Batch
from ..classifier import Classifier, resting, write
from ..client import Local, Term, training
from ..losses import cross_entropy
from ..method import Method, Sent, also, parameters
from ..optimizers import Optimizer, plain_sgd
from ..server import Conversation, Request, Round, Server, averaging, mean, uniform
from ..site import Site
from ..tree import Tree

PRESETS = {"paper": {"gamma": 1e-3, "keep": 0.95}, "official": {"from_zero": True}}


def fediir(
    gamma: Annotated[float, Field(ge=0)] = 1e-3,
    keep: Annotated[float, Field(ge=0, lt=1)] = 0.95,
    from_zero: bool = False,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Gradients of the head drawn to their mean over sites, of which `keep` is kept from round to round."""
    if not gamma:
        return Method(
            client=training(cross_entropy(), optimizer=optimizer), server=averaging, weighting=uniform, sums=True
        )

    def round(state: Tree, now: Round) -> Conversation:
        replies = yield Request("slope", {"model": state["model"]}, now.clients)
        new = mean(replies, "slope")  # by images: of all images together
        old = state.get("slope", tree.zeros(new) if from_zero else new)
        slope = tree.add(tree.scale(keep, old), tree.scale(1 - keep, new))
        replies = yield Request("train", {"model": state["model"], "slope": slope}, now.clients)
        return {"model": mean(replies, "model"), "slope": slope}

    client = training(invariant(gamma), optimizer=optimizer)
    return Method(
        client=client._replace(handlers={**client.handlers, "slope": measure}),
        server=Server(lambda nets: nets, round),
        weighting=uniform,
        sends=also({"train": {"model": parameters("model")}}, "slope", slope=Sent("parameters", like_the_head)),
        sums=True,
    )


def like_the_head(nets: Tree, body: Tree) -> Any:
    params = nets["model"]["params"]
    return {"weight": params["head.weight"], "bias": params["head.bias"]}


def slope_of(loss: Tensor, net: Classifier, create_graph: bool = False) -> Tree:
    """The gradient of a loss with respect to the head."""
    head = dict(net.head.named_parameters())
    return dict(zip(head, torch.autograd.grad(loss, list(head.values()), create_graph=create_graph), strict=True))


def measure(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
    """The gradient of the head at the received model, the mean over the site's images."""
    net = write(site.nets["model"], received["model"]).train()  # as it will be while training
    assert isinstance(net, Classifier)
    slopes, sizes = [], []
    for batch in site.batches(1):
        x, y = batch.merged
        with torch.no_grad(), resting(net):
            h = net.features(x)
        slopes.append(slope_of(F.cross_entropy(net.head(h), y), net))
        sizes.append(float(len(y)))
    return {"slope": tree.mean(slopes, sizes)}, private


def invariant(gamma: float) -> Term:
    """Cross-entropy, and gamma times the squared distance of its gradient of the head from that of all sites."""

    def term(local: Local, batch: Batch) -> Tensor:
        net, (x, y) = local.net, batch.merged
        assert isinstance(net, Classifier)
        loss = F.cross_entropy(net(x), y)
        gap = tree.sub(slope_of(loss, net, create_graph=True), local.received["slope"])
        return loss + gamma * tree.dot(gap, gap)

    return term
