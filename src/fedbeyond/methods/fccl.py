"""Learn from Others and Be Yourself in Heterogeneous Federated Learning.

Huang, Ye, Du; CVPR 2022.

Every site tells what its own model says of public images that nobody has labelled. Each then learns from these images
to agree with the mean of that, class by class, and to keep classes apart (cross-correlation); and from its own images
without forgetting what its last model and a teacher, trained once at the site, predict (continual learning).
"""

from functools import partial
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from .. import tree
from ..batch import Batch
from ..classifier import Networks, Task, read, resting, write
from ..client import Client, Local, Term, descend, nothing, stepper, training
from ..errors import ConfigError
from ..images import pixels
from ..losses import cross_entropy
from ..method import Method, Sent, parameters, positive, scalar
from ..optimizers import Optimizer, plain_sgd
from ..server import Conversation, Request, Round, Server, gather, mean, uniform
from ..site import Site, derive
from ..tree import Tree

PRESETS = {"paper": {"images": 5000, "batch": 256, "pretrain": 50, "public_rate": 1.0}}

FEWEST = 3  # images in a batch: of two, all correlations are 1 or -1

Weight = Annotated[float, Field(ge=0)]


def fccl(
    images: Annotated[int, Field(ge=0)] = 512,
    batch: Annotated[int, Field(ge=FEWEST)] = 64,
    public_rate: Annotated[float, Field(gt=0)] = 0.1,
    off_diagonal: Weight = 0.0051,
    intra: Weight = 1.0,
    inter: Weight = 1.0,
    pretrain: Annotated[int, Field(ge=0)] = 5,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Logits on public images, correlated with their mean over the sites; two teachers at each site."""
    if 0 < images < FEWEST:
        raise ValueError(f"images={images} says nothing of correlations; take three or more, or images=0 for none")
    schooling = training(cross_entropy(), optimizer=optimizer, epochs=pretrain)
    learning = training(continual(intra, inter), optimizer=optimizer)

    def teach(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
        held = len(site.data["public"][1]) if images else 0
        if images and held < FEWEST:
            raise ConfigError(f"public has {held} images, which says nothing of correlations; name a larger dataset")
        reply, _ = schooling.handlers["train"](site, received, {})
        return {"held": torch.tensor(float(held))}, {"teacher": reply["model"], "last": reply["model"]}

    @torch.no_grad()
    def tell(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
        net = write(site.nets["last"], private["last"]).eval()
        said = [net(public(site, some)) for some in received["index"].split(batch)]
        return {"logits": {"public": torch.cat(said)}}, private

    def train(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
        model = agreeing(site, received) if images else received["model"]
        for name in ("teacher", "last"):
            write(site.nets[name], private[name]).eval()
        reply, _ = learning.handlers["train"](site, {"model": model}, {})
        return reply, private | {"last": reply["model"]}

    def agreeing(site: Site, received: Tree) -> Tree:
        net = write(site.nets["model"], received["model"]).train()
        step = stepper(optimizer, net.parameters(), site, public_rate)

        def apart(x: Tensor, said: Tensor) -> Tensor:
            return cross_correlation(net(x), said, off_diagonal)

        told = zip(received["index"].split(batch), received["logits"]["public"].split(batch), strict=True)
        for some, said in told:
            if len(some) >= FEWEST:
                with resting(net):  # running statistics are those of the site's images
                    descend(step, partial(apart, public(site, some), said))
        return read(net)

    def round(state: Tree, now: Round) -> Conversation:
        body = {"model": state["model"]}
        taught = yield from gather("teach", state["taught"], now, body)
        ready = tuple(client for client in now.clients if client in taught)
        if images:
            held = min(int(told["held"]) for told in taught.values())
            rng = torch.Generator().manual_seed(derive(now.seed, now.number, "fccl"))
            index = torch.randperm(held, generator=rng)[:images]
            told = yield Request("tell", {"index": index}, ready)
            body |= {"index": index, "logits": tree.mean([r.body["logits"] for r in told], [1.0] * len(told))}
        replies = yield Request("train", body, ready)
        return {"model": mean(replies, "model"), "taught": taught}

    def like(nets: Tree, body: Tree) -> Tree:
        head = nets["model"]["params"]["head.weight"]
        return {"public": head.new_zeros(len(body["index"]) if body else images, len(head))}

    handlers = {"teach": teach, "train": train} | ({"tell": tell} if images else {})
    logits = {"tell": {"logits": Sent("statistics", like)}} if images else {}
    return Method(
        client=Client(nothing, handlers),
        server=Server(lambda nets: nets | {"taught": {}}, round),
        weighting=uniform,
        sends={"teach": {"held": positive if images else scalar}, **logits, "train": {"model": parameters("model")}},
        networks=with_teachers,
        public=images > 0,
    )


def with_teachers(task: Task) -> Networks:
    return {name: task.network(task) for name in ("model", "teacher", "last")}


def public(site: Site, index: Tensor) -> Tensor:
    """Some of the images that every site has."""
    return pixels(site.data["public"][0][index.cpu()].to(site.device))


def cross_correlation(scores: Tensor, said: Tensor, off_diagonal: float) -> Tensor:
    """How far the correlations of two columns of scores are from 1, of one class, and from -1, of two classes."""
    between = standardised(scores).T @ standardised(said) / len(scores)
    same = between.diagonal()
    others = (between + 1).square().sum() - (same + 1).square().sum()
    return (same - 1).square().sum() + off_diagonal * others


def standardised(scores: Tensor) -> Tensor:
    """Every column with a mean of 0 and a spread of 1; one that is all the same, with zeros."""
    centred = scores - scores.mean(0)
    return centred / (centred.square().mean(0) + 1e-12).sqrt()


def continual(intra: float, inter: float) -> Term:
    """Cross-entropy, and how far predictions are from those of the site's teacher and of its last model."""
    teachers = {name: weight for name, weight in (("teacher", intra), ("last", inter)) if weight}

    def term(local: Local, batch: Batch) -> Tensor:
        x, y = batch.merged
        scores = local.net(x)
        loss = F.cross_entropy(scores, y)
        for name, weight in teachers.items():
            with torch.no_grad():
                meant = local.site.nets[name](x).softmax(1)
            loss = loss + weight * F.kl_div(scores.log_softmax(1), meant, reduction="batchmean")
        return loss

    return term
