"""Adversarial Teacher-Student Representation Learning for Domain Generalization.

Yang, Cheng, Shiau, Wang; NeurIPS 2021.

A generator makes whole new images that look novel to the student but keep their class, a student learns to see in
them what the teacher sees in the old, and the teacher follows the student. How novel they may look is measured: as
far as the domains, here the sites, lie apart.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from ..classifier import Classifier, Networks, Task, at_once, for_images, write
from ..client import Client, nothing
from ..images import pixels
from ..method import Method, Sends, Sent, parameters
from ..networks.fcn import Fcn
from ..optimizers import Optimizer, plain_sgd
from ..server import Conversation, Reply, Request, Round, Server, mean, uniform
from ..site import Site
from ..tree import Tree
from .ndag import NOVELTY, Learn, Statistics, teaching, trio

PRESETS = {"paper": {"learn": "generated", "decay": 0.999}}


def ats(
    margin: Annotated[float, Field(ge=0)] | None = None,
    width: Annotated[int, Field(gt=0)] = 32,
    decay: Annotated[float, Field(ge=0, lt=1)] | None = None,
    learn: Learn = "both",
    warmup: Annotated[int, Field(ge=0)] = 5,
    statistics: Statistics = "local",
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """A generator of novel images against a student, a teacher that follows it, and a margin that is measured."""
    shared = ("model", "generator")
    train = teaching(painted, margin, decay, 3, learn, statistics, optimizer)
    sends: Sends = {"train": {**{name: parameters(name) for name in shared}, "novelty": NOVELTY}}

    def networks(task: Task) -> Networks:
        nets = trio(width)(task)
        generator = nets["generator"]
        assert isinstance(generator, Fcn)
        for layer in (generator.context, generator.out):
            layer.reset_parameters()  # larger than for a perturbation, or the first images would be blank
        return nets

    def round(state: Tree, now: Round) -> Conversation:
        furthest = state["margin"]
        if margin is None:
            replies = yield Request("centre", {"model": state["model"]}, now.clients, quorum=1)
            furthest = apart(replies) if len(replies) > 1 else furthest
        body = {name: state[name] for name in shared}
        body |= {"warm": torch.tensor(now.number < warmup), "margin": furthest}
        replies = yield Request("train", body, now.clients)
        told = {"margin": furthest, **mean(replies, "novelty")}
        return {name: mean(replies, name) for name in shared} | {"margin": furthest, "told": told}

    def begin(nets: Tree) -> Tree:
        far = torch.tensor(margin or 0.0)  # until two sites have said where they are
        return nets | {"margin": far, "told": {"margin": far}}

    return Method(
        client=Client(nothing, {"train": train} | ({"centre": centre} if margin is None else {})),
        server=Server(begin, round),
        weighting=uniform,
        networks=for_images("ats", networks),
        shared=shared,
        sends=sends if margin is not None else {"centre": {"centre": Sent("data-derived", a_feature)}, **sends},
        least=2 if margin is None else 1,
        sums=margin is not None,  # otherwise it is measured between single sites
    )


def painted(generator: nn.Module, x: Tensor) -> Tensor:
    """The generator's image itself, not a perturbation of the old one."""
    return generator(x)  # type: ignore[no-any-return]


@torch.no_grad()
def centre(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
    """The mean of what the received model sees in a site's training images, each of length one."""
    net, (images, _) = write(site.nets["model"], received["model"]).eval(), site.data["train"]
    assert isinstance(net, Classifier)
    total = sum(F.normalize(net.features(pixels(x.to(site.device)))).sum(0) for x in images.split(at_once(site.device)))
    return {"centre": {"mean": total / site.size}}, private


def apart(replies: list[Reply]) -> Tensor:
    """The mean squared distance of two sites' centres: the margin, in the unit of the distance that it bounds."""
    return torch.pdist(torch.stack([reply.body["centre"]["mean"] for reply in replies])).square().mean()


def a_feature(nets: Tree, body: Tree) -> Tree:
    """As many numbers as the head sees."""
    return {"mean": torch.zeros_like(nets["model"]["params"]["head.weight"][0])}
