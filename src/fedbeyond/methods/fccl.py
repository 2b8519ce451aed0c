"""Learn from Others and Be Yourself in Heterogeneous Federated Learning.

Huang, Ye, Du; CVPR 2022.

Each site sends its own model's logits on unlabelled public images. On these images each site then learns to agree with
the mean logits of all sites, class by class, and to separate the classes (cross-correlation). On its own images it
learns without forgetting the predictions of its last model and of a teacher trained once (continual learning).
"""

from functools import partial
from typing import Annotated

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor, nn
from torch.nn import functional as F

from .. import tree
from .._method import Method, Sent, parameters, positive, scalar
from ..batch import Batch
from ..classifier import Networks, Task, classifiers, read, statistics_kept, write
from ..client import Client, Local, Term, descend, make_optimizer, no_state, training
from ..errors import ConfigError
from ..images import pixels
from ..losses import cross_entropy
from ..optimizers import Optimizer, plain_sgd
from ..server import Conversation, Request, Round, Server, mean, request_once, uniform
from ..site import Site, derive
from ..tree import Tree

PRESETS = {"paper": {"images": 5000, "batch": 256, "pretrain": 50, "public_rate": 1.0}}

FEWEST = 3  # images in a batch: with two, all correlations are 1 or -1


def fccl(
    images: Annotated[NonNegativeInt, "public images in a round; 0: no public images"] = 512,
    batch: Annotated[int, Field(ge=FEWEST), "batch size of public images"] = 64,
    public_rate: Annotated[PositiveFloat, "learning rate on public images, as a multiple of the run's"] = 0.1,
    off_diagonal: Annotated[NonNegativeFloat, "weight of the correlations of different classes"] = 0.0051,
    intra: Annotated[NonNegativeFloat, "weight of the teacher's predictions; 0: none"] = 1.0,
    inter: Annotated[NonNegativeFloat, "weight of the last model's predictions; 0: none"] = 1.0,
    pretrain: Annotated[NonNegativeInt, "epochs of the teacher before a site's first round"] = 5,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Align logits on public images with their mean over the sites; distil from two teachers at each site."""
    if 0 < images < FEWEST:
        raise ValueError(
            f"images={images} is too few for correlations; give 3 or more, or images=0 for no public images"
        )
    pretraining = training(cross_entropy(), optimizer=optimizer, epochs=pretrain)
    local_training = training(continual(intra, inter), optimizer=optimizer)

    def teach(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
        """Train and keep the site's teacher; send the number of public images that the site has."""
        count = len(site.data["public"][1]) if images else 0
        if images and count < FEWEST:
            raise ConfigError(f"public has {count} images, too few for correlations; give a dataset with 3 or more")
        reply, _ = pretraining.handlers["train"](site, received, {})
        return {"held": torch.tensor(float(count))}, {"teacher": reply["model"], "last": reply["model"]}

    @torch.no_grad()
    def tell(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
        """Send the logits of the site's last model on the public images that the server chose."""
        net = write(site.nets["last"], private["last"]).eval()
        logits = [net(public(site, index)) for index in received["index"].split(batch)]
        return {"logits": {"public": torch.cat(logits)}}, private

    def train(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
        """Train the received model, first on public images, then on the site's own images with both teachers."""
        model = correlate(site, received) if images else received["model"]
        reply, _ = local_training.handlers["train"](site, {"model": model}, private)
        return reply, private | {"last": reply["model"]}

    def correlate(site: Site, received: Tree) -> Tree:
        """Return the received model after one pass over the chosen public images (cross-correlation)."""
        net = write(site.nets["model"], received["model"]).train()
        step = make_optimizer(optimizer, net.parameters(), site, public_rate)

        def loss(x: Tensor, mean_logits: Tensor) -> Tensor:
            return cross_correlation(net(x), mean_logits, off_diagonal)

        batches = zip(received["index"].split(batch), received["logits"]["public"].split(batch), strict=True)
        for index, mean_logits in batches:
            if len(index) >= FEWEST:
                with statistics_kept(net):  # running statistics come from the site's own images only
                    descend(step, partial(loss, public(site, index), mean_logits))
        return read(net)

    def round(state: Tree, now: Round) -> Conversation:
        body = {"model": state["model"]}
        taught = yield from request_once("teach", state["taught"], now, body)
        ready = tuple(client for client in now.clients if client in taught)
        if images:
            available = min(int(reply["held"]) for reply in taught.values())
            rng = torch.Generator().manual_seed(derive(now.seed, now.number, "fccl"))
            index = torch.randperm(available, generator=rng)[:images]
            answers = yield Request("tell", {"index": index}, ready)
            body |= {"index": index, "logits": tree.mean([r.body["logits"] for r in answers], [1.0] * len(answers))}
        replies = yield Request("train", body, ready)
        return {"model": mean(replies, "model"), "taught": taught}

    def example_logits(nets: Tree, body: Tree) -> Tree:
        return {"public": nets["classes"]["buffers"]["zeros"].repeat(len(body["index"]) if body else images, 1)}

    def networks(task: Task) -> Networks:
        return classifiers("model", "teacher", "last")(task) | {"classes": Classes(len(task.classes))}

    handlers = {"teach": teach, "train": train} | ({"tell": tell} if images else {})
    logits_sent = {"tell": {"logits": Sent("statistics", example_logits)}} if images else {}
    return Method(
        client=Client(no_state, handlers),
        server=Server(lambda nets: {"model": nets["model"], "taught": {}}, round),
        weighting=uniform,
        sends={
            "teach": {"held": positive if images else scalar},
            **logits_sent,
            "train": {"model": parameters("model")},
        },
        keeps={"teacher", "last"},
        networks=networks,
        shared=("model", "classes"),
        public=images > 0,
        inputs_unchanged=True,
    )


class Classes(nn.Module):
    """A zero for each class, by which the server knows the shape of logits."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.register_buffer("zeros", torch.zeros(count))


def public(site: Site, index: Tensor) -> Tensor:
    """Return the public images with these indices; they are the same at every site."""
    return pixels(site.data["public"][0][index.cpu()].to(site.device))


def cross_correlation(logits: Tensor, mean_logits: Tensor, off_diagonal: float) -> Tensor:
    """Compute the loss that draws correlations of equal classes to 1 and those of different classes to -1."""
    correlation = standardised(logits).T @ standardised(mean_logits) / len(logits)
    same = correlation.diagonal()
    others = (correlation + 1).square().sum() - (same + 1).square().sum()
    return (same - 1).square().sum() + off_diagonal * others


def standardised(logits: Tensor) -> Tensor:
    """Return the columns with mean 0 and standard deviation 1; a constant column becomes zero."""
    centred = logits - logits.mean(0)
    return centred / (centred.square().mean(0) + 1e-12).sqrt()


def continual(intra: float, inter: float) -> Term:
    """Return the loss term: cross-entropy, plus the KL divergence from the site's teacher and its last model."""
    teachers = {name: weight for name, weight in (("teacher", intra), ("last", inter)) if weight}

    def term(local: Local, batch: Batch) -> Tensor:
        x, y = batch.merged
        logits = local.net(x)
        loss = F.cross_entropy(logits, y)
        for name, weight in teachers.items():
            with torch.no_grad():
                target = local.frozen(name, local.private[name])(x).softmax(1)
            loss = loss + weight * F.kl_div(logits.log_softmax(1), target, reduction="batchmean")
        return loss

    return term
