"""FedGCA: Global Consistent Augmentation Based Single-Source Federated Domain Generalization.

Liu, Wang, Qu, Li, Kan, Wang; 2024.

Each site sees its images in further styles as well. Predictions and attention maps of all views should agree, with
those of the received model too (semantic consistency); a dual variable at each site and at the server keeps sites
with different classes on one objective (class consistency, as in FedDyn).
"""

from typing import Annotated, Literal, cast

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from .. import tree
from ..batch import Batch, plain
from ..classifier import Classifier, classifier, for_images, guided, read
from ..client import Local, Term, training
from ..data.augment import style as augment
from ..errors import ConfigError
from ..losses import cross_entropy
from ..method import Method
from ..optimizers import Optimizer, plain_sgd
from ..server import Conversation, Request, Round, Server, mean, uniform
from ..site import Site
from ..tree import Tree

PRESETS = {
    "paper": {"alpha": 0.1, "beta": 0.1, "output": "corrected"},
    "pacs": {"alpha": 10.0, "beta": 8.0, "output": "corrected"},
}

Form = Literal["bce", "kl", "js"]
TINY = 1e-7


def fedgca(
    views: Annotated[int, Field(ge=0)] = 2,
    alpha: Annotated[float, Field(ge=0)] = 0.1,
    beta: Annotated[float, Field(ge=0)] = 0.1,
    p: bool = True,
    pg: bool = True,
    m: bool = True,
    mg: bool = True,
    form: Form = "bce",
    detach_mean: bool = False,
    repeats: Annotated[int, Field(gt=0)] = 3,
    chains: Annotated[int, Field(gt=0)] = 1,
    output: Literal["mean", "corrected"] = "mean",
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Views in random styles; predictions (p) and attention (m) agree, also with the received model's (pg, mg)."""
    if (pg and not p) or (mg and not m):
        raise ConfigError("fedgca: pg adds the received model to p, and mg to m; switch p or m on as well")
    agreeing = beta > 0 and (p or m)
    semantic = consistent(beta, p, pg, m, mg, form, detach_mean) if agreeing else cross_entropy()  # Eq. 1: all views
    terms = (semantic, class_consistency(alpha)) if alpha else (semantic,)  # Eq. 6

    style = augment.rand_conv(repeats=repeats, chains=chains, level=True)

    def new_dual(local: Local) -> tuple[Tree, Tree]:  # Algorithm 1, line 10
        model = read(local.net)
        drift = tree.sub(model["params"], local.start)
        return {"model": model}, {"dual": tree.sub(local.private["dual"], tree.scale(alpha, drift))}

    def round(state: Tree, now: Round) -> Conversation:
        start = state["start"]  # goes along if it is not the model's own; the dual stays
        body = {"model": state["model"]} | ({"start": start} if alpha and output == "mean" else {})
        replies = yield Request("train", body, now.clients)
        model = mean(replies, "model")
        moved = tree.mean([r.own["model"]["params"] for r in replies], [1.0] * len(replies))  # as at the sites
        shared = alpha * len(replies) / len(now.enrolled)  # alpha/K for each that took part
        dual = tree.sub(state["dual"], tree.scale(shared, tree.sub(moved, start)))  # line 13
        corrected = tree.sub(model["params"], tree.scale(1 / alpha, dual)) if alpha else model["params"]  # line 14
        return {"model": model if output == "mean" else model | {"params": corrected}, "start": corrected, "dual": dual}

    nets = guided if agreeing and (pg or mg) else classifier
    return Method(
        client=training(*terms, optimizer=optimizer, init=no_dual, finish=new_dual),
        server=Server(with_dual, round),
        weighting=uniform,
        sums=True,
        augment=augment.views(style, views) if views else plain,  # X+
        networks=for_images("fedgca", nets) if views or (agreeing and m) else nets,
    )


def with_dual(nets: Tree) -> Tree:
    params = nets["model"]["params"]
    return {"model": nets["model"], "start": params, "dual": tree.zeros(params)}


def no_dual(site: Site) -> Tree:
    return {"dual": tree.zeros(read(site.nets["model"])["params"])}


def class_consistency(alpha: float) -> Term:
    """alpha * L_OC: its gradient is alpha (w - w^t) - lambda_i."""

    def term(local: Local, batch: Batch) -> Tensor:  # Eq. 5
        drift = tree.sub(local.params, local.start)
        return alpha / 2 * tree.dot(drift, drift) - tree.dot(local.private["dual"], local.params)

    return term


def consistent(beta: float, p: bool, pg: bool, m: bool, mg: bool, form: Form, detach_mean: bool) -> Term:
    """Cross-entropy plus beta * L_GC, from one look at all views."""

    def term(local: Local, batch: Batch) -> Tensor:  # Eq. 4
        x, y = batch.merged
        count = 1 + len(batch.views)
        nets = cast(list[Classifier], [local.net, local.guide] if pg or mg else [local.net])
        looks = [look(net, x, trained=net is local.net) for net in nets]
        loss = F.cross_entropy(looks[0][1], y)
        if p:
            guesses = [scores.softmax(1).unflatten(0, (count, -1)) for _, scores in looks[: 1 + pg]]
            loss = loss + beta * agreement(guesses, form, detach_mean)
        if m:
            seen = zip(nets, looks[: 1 + mg], strict=False)
            places = [attention(net, *looked, y).unflatten(0, (count, -1)) for net, looked in seen]
            places[1:] = [place.detach() for place in places[1:]]
            loss = loss + beta * divergence(places[0], centre(places, detach_mean))
        return loss

    return term


def look(net: Classifier, x: Tensor, trained: bool) -> tuple[Tensor, Tensor]:
    """The last feature maps, and the scores of all classes."""
    if trained:
        return net.look(x)
    with torch.no_grad():
        maps, scores = net.look(x)
    if net.attentive:
        return maps, scores
    maps.requires_grad_()
    return maps, net.head(net.pooled(maps))


def attention(net: Classifier, maps: Tensor, scores: Tensor, y: Tensor) -> Tensor:
    """Where a network looks for the classes `y`: their activation maps as distributions."""
    return activation(net, maps, scores, y).flatten(1).softmax(1)


def activation(net: Classifier, maps: Tensor, scores: Tensor, y: Tensor) -> Tensor:
    """The activation maps of the classes `y`, M = sum_l W_l F_l.

    Where the head does not weigh the maps themselves, W_l is the slope of the class's score along the l-th map, which
    is the head's weight where it does.
    """
    if net.attentive:
        weights = net.head.weight[y]
    else:
        (slopes,) = torch.autograd.grad(scores.gather(1, y[:, None]).sum(), maps, create_graph=True)
        weights = slopes.sum((2, 3))
    return torch.einsum("nc,nchw->nhw", weights, maps)


def centre(members: list[Tensor], detach: bool) -> Tensor:
    """The mean of the distributions of all views, by the local model and perhaps the received one."""
    middle = torch.cat(members).mean(0)
    return middle.detach() if detach else middle


def agreement(guesses: list[Tensor], form: Form, detach: bool) -> Tensor:  # Eq. 2
    """Measure how far predictions (view x image x class) are from their mean: summed over views, mean over images."""
    middle = centre(guesses, detach)
    if form == "bce":  # as printed: it also sharpens, and is zero only where all are sure of one class
        middle = middle.clamp(TINY, 1 - TINY)
        return -(guesses[0] * middle.log() + (1 - guesses[0]) * (1 - middle).log()).sum((0, 2)).mean()
    if form == "kl":
        return divergence(guesses[0], middle)
    return divergence(torch.cat(guesses), middle) / len(guesses)  # js: the mean over the models that predict


def divergence(members: Tensor, middle: Tensor) -> Tensor:  # Eq. 3
    """Compute KL(member || middle), summed over members (views), mean over images."""
    return (members * (members.clamp(min=TINY).log() - middle.clamp(min=TINY).log())).sum((0, 2)).mean()
