"""Adversarial Teacher-Student Representation Learning for Domain Generalization.

Yang, Cheng, Shiau, Wang; NeurIPS 2021.

A generator makes new images that keep their class but have novel features for the student. The student learns to give
them the features that the teacher gives the original images; the teacher is a moving average of the student. Novelty is
rewarded up to a margin that is measured: the mean squared distance between domains (here: sites).
"""

from typing import Annotated

import torch
from pydantic import NonNegativeFloat, NonNegativeInt
from torch import Tensor, nn
from torch.nn import functional as F

from .._method import Method, Sends, Sent, parameters
from ..classifier import Classifier, Networks, Task, eval_batch_size, for_images, write
from ..client import Client, no_state
from ..images import pixels
from ..networks.fcn import Fcn
from ..optimizers import Optimizer, plain_sgd
from ..server import Conversation, Reply, Request, Round, Server, mean, uniform
from ..site import Site
from ..tree import Tree
from .ndag import NOVELTY, Decay, Learn, Statistics, Width, student_teacher_generator, teaching

PRESETS = {"paper": {"learn": "generated", "decay": 0.999}}


def ats(
    margin: Annotated[NonNegativeFloat | None, "distance up to which novelty is rewarded, m; none: measured"] = None,
    width: Width = 32,
    decay: Decay = None,
    learn: Learn = "both",
    warmup: Annotated[NonNegativeInt, "first rounds, in which the student learns from original images only"] = 5,
    statistics: Statistics = "local",
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Train a student on generated images that are novel up to a measured margin; average its teachers."""
    shared = ("model", "generator")
    train = teaching(painted, margin, decay, 3, learn, statistics, optimizer)
    sends: Sends = {"train": {**{name: parameters(name) for name in shared}, "novelty": NOVELTY}}
    feature = Sent("data-derived", lambda nets, body: {"mean": nets["model"]["params"]["head.weight"][0]})

    def networks(task: Task) -> Networks:
        nets = student_teacher_generator(width, task)
        generator = nets["generator"]
        assert isinstance(generator, Fcn)
        for layer in (generator.context, generator.out):
            layer.reset_parameters()  # default weights: the small ones of a perturbation make blank images
        return nets

    def round(state: Tree, now: Round) -> Conversation:
        bound = state["margin"]
        if margin is None:
            replies = yield Request("centre", {"model": state["model"]}, now.clients, quorum=1)
            bound = measured_margin(replies) if len(replies) > 1 else bound
        body = {name: state[name] for name in shared}
        body |= {"warm": torch.tensor(now.number < warmup), "margin": bound}
        replies = yield Request("train", body, now.clients)
        diagnostics = {"margin": bound, **mean(replies, "novelty")}
        return {name: mean(replies, name) for name in shared} | {"margin": bound, "diagnostics": diagnostics}

    def begin(nets: Tree) -> Tree:
        bound = torch.tensor(margin or 0.0)  # 0 until two sites have sent their mean features
        return nets | {"margin": bound, "diagnostics": {"margin": bound}}

    return Method(
        client=Client(no_state, {"train": train} | ({"centre": centre} if margin is None else {})),
        server=Server(begin, round),
        weighting=uniform,
        networks=for_images("ats", networks),
        needs={"features"},
        shared=shared,
        sends=sends if margin is not None else {"centre": {"centre": feature}, **sends},
        keeps={"steps", "teacher"},
        min_clients=2 if margin is None else 1,
        linear_aggregation=margin is not None,  # a measured margin needs single replies
    )


def painted(generator: nn.Module, x: Tensor) -> Tensor:
    """Return the generator's output as the new image, instead of adding it to the original image."""
    return generator(x)  # type: ignore[no-any-return]


@torch.no_grad()
def centre(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
    """Send the mean over the site's training images of the received model's features, normalised to length one."""
    net, (images, _) = write(site.nets["model"], received["model"]).eval(), site.data["train"]
    assert isinstance(net, Classifier)
    total = sum(
        F.normalize(net.features(pixels(x.to(site.device)))).sum(0) for x in images.split(eval_batch_size(site.device))
    )
    return {"centre": {"mean": total / site.size}}, private


def measured_margin(replies: list[Reply]) -> Tensor:
    """Compute the margin: the mean squared distance between the mean features of two sites."""
    return torch.pdist(torch.stack([reply.body["centre"]["mean"] for reply in replies])).square().mean()
