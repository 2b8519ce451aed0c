"""Fast-convergent federated learning with class-weighted aggregation.

Ma, Zhao, Cai, Jia; Journal of Systems Architecture 2021; https://doi.org/10.1016/j.sysarc.2021.102125

In the head, the row and the bias of class c are averaged with weights n_ic / sum_j n_jc, where n_ic is the number of
training images of class c at site i. All other layers are averaged by the number of images, as in FedAvg.
"""

from typing import cast

import torch
from torch import Tensor

from .._method import Method, Sent, also, parameters
from ..classifier import Classifier
from ..client import training
from ..losses import cross_entropy
from ..optimizers import Optimizer, plain_sgd
from ..server import Conversation, Reply, Request, Round, Server, mean, request_once
from ..site import Site
from ..tree import Tree

PRESETS: dict[str, Tree] = {"paper": {}}  # the authors published no code

ROWS = ("head.weight", "head.bias")  # one row per class


def fedcsa(optimizer: Optimizer = plain_sgd) -> Method:
    """Average the head's rows weighted by the images of their class, all other layers as in FedAvg."""
    counts = Sent("data-derived", lambda nets, body: {"counts": nets["model"]["params"][ROWS[0]][:, 0].long()})
    return Method(
        client=training(cross_entropy(), optimizer=optimizer).also(labels=count),
        server=Server(lambda nets: nets | {"labels": {}}, round),
        sends=also({"train": {"model": parameters("model")}}, "labels", histogram=counts),
        needs={"features"},  # their head, by the names of its parameters
        inputs_unchanged=True,
    )


def count(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
    """Send the number of training images of each class."""
    classes = cast(Classifier, site.nets["model"]).head.out_features
    return {"histogram": {"counts": torch.bincount(site.data["train"][1], minlength=classes)}}, private


def round(state: Tree, now: Round) -> Conversation:
    """Collect the histograms of new clients, train, and average the head class by class."""
    bank = yield from request_once("labels", state["labels"], now)
    known = tuple(name for name in now.clients if name in bank)  # without a histogram there is no weight
    replies = yield Request("train", {"model": state["model"]}, known)
    model = mean(replies, "model")
    counts = torch.stack([bank[reply.client]["histogram"]["counts"] for reply in replies])
    head = {name: by_class(name, replies, counts) for name in ROWS if name in model["params"]}
    return {"model": model | {"params": model["params"] | head}, "labels": bank}


def by_class(name: str, replies: list[Reply], counts: Tensor) -> Tensor:
    """Average the rows of a layer, weighted by the images of their class; by all images for a class without any."""
    weights = torch.tensor([reply.weight for reply in replies], dtype=torch.float64)
    weights_by_class = torch.where(counts.sum(0) > 0, counts.double(), weights[:, None])  # site x class
    rows = torch.stack([reply.body["model"]["params"][name] for reply in replies])
    return torch.einsum("sc,sc...->c...", (weights_by_class / weights_by_class.sum(0)).to(rows), rows)
