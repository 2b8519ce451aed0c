"""Fast-convergent federated learning with class-weighted aggregation.

Ma, Zhao, Cai, Jia; Journal of Systems Architecture 2021; https://doi.org/10.1016/j.sysarc.2021.102125

What a site knows of a class depends on how many images of it the site holds. In the head, the row and the bias of
class c are averaged by n_ic / sum_j n_jc; all other layers by the number of images, as in FedAvg.
"""

from typing import Any

import torch
from torch import Tensor

from ..client import training
from ..losses import cross_entropy
from ..method import Method, Sent, also, parameters
from ..optimizers import Optimizer, plain_sgd
from ..server import Conversation, Reply, Request, Round, Server, gather, mean
from ..site import Site
from ..tree import Tree

PRESETS: dict[str, Tree] = {"paper": {}}  # the authors published no code

ROWS = ("head.weight", "head.bias")  # one for each class


def fedcsa(optimizer: Optimizer = plain_sgd) -> Method:
    """The head's rows averaged by how many images of their class a site holds, all else as FedAvg."""
    client = training(cross_entropy(), optimizer=optimizer)
    return Method(
        client=client._replace(handlers={**client.handlers, "labels": count}),
        server=Server(lambda nets: nets | {"labels": {}}, round),
        sends=also(
            {"train": {"model": parameters("model")}}, "labels", histogram=Sent("data-derived", one_for_each_class)
        ),
    )


def one_for_each_class(nets: Tree, body: Tree) -> Any:
    return {"counts": torch.zeros(len(nets["model"]["params"][ROWS[1]]), dtype=torch.int64)}


def count(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
    """How many images of each class a site trains on."""
    bias = dict(site.nets["model"].named_parameters())[ROWS[1]]
    return {"histogram": {"counts": torch.bincount(site.data["train"][1], minlength=len(bias))}}, private


def round(state: Tree, now: Round) -> Conversation:
    bank = yield from gather("labels", state["labels"], now)
    known = tuple(name for name in now.clients if name in bank)  # who cannot be weighed does not train
    replies = yield Request("train", {"model": state["model"]}, known)
    model = mean(replies, "model")
    counts = torch.stack([bank[reply.client]["histogram"]["counts"] for reply in replies])
    head = {name: by_class(name, replies, counts) for name in ROWS}
    return {"model": model | {"params": model["params"] | head}, "labels": bank}


def by_class(name: str, replies: list[Reply], counts: Tensor) -> Tensor:
    """The mean of the rows of a layer, each weighted by the images of its class; of a class nobody has, as all else."""
    weights = torch.tensor([reply.weight for reply in replies], dtype=torch.float64)
    held = torch.where(counts.sum(0) > 0, counts.double(), weights[:, None])  # site x class
    rows = torch.stack([reply.body["model"]["params"][name] for reply in replies])
    return torch.einsum("sc,sc...->c...", (held / held.sum(0)).to(rows), rows)
