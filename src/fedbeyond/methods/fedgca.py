"""FedGCA: Global Consistent Augmentation Based Single-Source Federated Domain Generalization.

Liu, Wang, Qu, Li, Kan, Wang; 2024.

Each site also trains on its images in other styles (views). Predictions and attention maps of all views should agree
with each other and with those of the received model (semantic consistency). Dual variables at the sites and the server
align the objectives of sites with different classes (class consistency, as in FedDyn).
"""

from typing import Annotated, Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor
from torch.nn import functional as F

from .. import tree
from .._method import Method
from ..batch import Batch, plain
from ..classifier import Classifier, classifier, classifiers, for_images, read
from ..client import Local, Term, training, zero_params
from ..data.augment import style as augment
from ..errors import ConfigError
from ..losses import cross_entropy
from ..optimizers import Optimizer, plain_sgd
from ..server import Conversation, Request, Round, Server, mean, uniform
from ..tree import Tree

PRESETS = {
    "paper": {"alpha": 0.1, "beta": 0.1, "output": "corrected"},
    "pacs": {"alpha": 10.0, "beta": 8.0, "output": "corrected"},
}

Form = Literal["bce", "kl", "js"]
TINY = 1e-7


def fedgca(
    views: Annotated[NonNegativeInt, "further styles of each image, J"] = 2,
    alpha: Annotated[NonNegativeFloat, "weight of class consistency, alpha in Eq. 5; 0: none"] = 0.1,
    beta: Annotated[NonNegativeFloat, "weight of semantic consistency, beta in Eq. 4; 0: none"] = 0.1,
    p: Annotated[bool, "predictions of all views agree with their mean, P"] = True,
    pg: Annotated[bool, "the received model's predictions are part of that mean, P^G"] = True,
    m: Annotated[bool, "attention maps of all views agree with their mean, M"] = True,
    mg: Annotated[bool, "the received model's maps are part of that mean, M^G"] = True,
    form: Annotated[Form, "loss of predictions: binary cross-entropy as printed, KL or JS divergence"] = "bce",
    detach_mean: Annotated[bool, "pass no gradient through the means"] = False,
    repeats: Annotated[PositiveInt, "most times that one random convolution is applied"] = 3,
    chains: Annotated[PositiveInt, "chains of convolutions that are blended for a view"] = 1,
    output: Annotated[Literal["mean", "corrected"], "global model: mean of the sites', or minus dual / alpha"] = "mean",
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Train on views in random styles with consistent predictions (p, pg) and attention (m, mg), and FedDyn's duals."""
    if (pg and not p) or (mg and not m):
        raise ConfigError("fedgca: pg adds the received model to p, and mg to m; set p=true for pg, m=true for mg")
    consistency = beta > 0 and (p or m)
    semantic = consistent(beta, p, pg, m, mg, form, detach_mean) if consistency else cross_entropy()  # Eq. 1: all views
    terms = (semantic, class_consistency(alpha)) if alpha else (semantic,)  # Eq. 6

    style = augment.rand_conv(repeats=repeats, chains=chains, level=True)

    def new_dual(local: Local) -> tuple[Tree, Tree]:  # Algorithm 1, line 10
        model = read(local.net)
        drift = tree.sub(model["params"], local.start)
        return {"model": model}, {"dual": tree.sub(local.private["dual"], tree.scale(alpha, drift))}

    def round(state: Tree, now: Round) -> Conversation:
        start = state["start"]  # sent if it differs from the model's parameters; the dual stays at the server
        body = {"model": state["model"]} | ({"start": start} if alpha and output == "mean" else {})
        replies = yield Request("train", body, now.clients)
        model = mean(replies, "model")
        moved = tree.mean([r.own["model"]["params"] for r in replies], [1.0] * len(replies))  # always uniform
        shared = alpha * len(replies) / len(now.enrolled)  # alpha/K for each participating site
        dual = tree.sub(state["dual"], tree.scale(shared, tree.sub(moved, start)))  # line 13
        corrected = tree.sub(model["params"], tree.scale(1 / alpha, dual)) if alpha else model["params"]  # line 14
        return {"model": model if output == "mean" else model | {"params": corrected}, "start": corrected, "dual": dual}

    nets = classifiers("model", "guide") if consistency and (pg or mg) else classifier
    return Method(
        client=training(*terms, optimizer=optimizer, init=zero_params("dual"), finish=new_dual),
        server=Server(with_dual, round),
        weighting=uniform,
        keeps={"dual"},
        linear_aggregation=True,
        augment=augment.views(style, views) if views else plain,  # X+
        networks=for_images("fedgca", nets) if views or (consistency and m) else nets,
        needs={"maps"} if consistency and m else set(),
    )


def with_dual(nets: Tree) -> Tree:
    """Return the initial server state: the model, the parameters that sites start from, and a dual of zero."""
    params = nets["model"]["params"]
    return {"model": nets["model"], "start": params, "dual": tree.zeros(params)}


def class_consistency(alpha: float) -> Term:
    """Return the loss term alpha * L_OC, with gradient alpha (w - w^t) - lambda_i."""

    def term(local: Local, batch: Batch) -> Tensor:  # Eq. 5
        drift = tree.sub(local.params, local.start)
        return alpha / 2 * tree.dot(drift, drift) - tree.dot(local.private["dual"], local.params)

    return term


def consistent(beta: float, p: bool, pg: bool, m: bool, mg: bool, form: Form, detach_mean: bool) -> Term:
    """Return the loss term: cross-entropy plus beta * L_GC, from one forward pass over all views."""

    def term(local: Local, batch: Batch) -> Tensor:  # Eq. 4
        x, y = batch.merged
        count = 1 + len(batch.views)
        nets = [local.net, local.guide] if pg or mg else [local.net]
        outputs = [outputs_of(net, x, net is local.net, with_maps=m) for net in nets]  # of each: feature maps, logits
        loss = F.cross_entropy(outputs[0][1], y)
        if p:
            predictions = [logits.softmax(1).unflatten(0, (count, -1)) for _, logits in outputs[: 1 + pg]]
            loss = loss + beta * agreement(predictions, form, detach_mean)
        if m:
            pairs = zip(nets, outputs[: 1 + mg], strict=False)
            attentions = [attention(net, *output, y).unflatten(0, (count, -1)) for net, output in pairs]
            attentions[1:] = [received.detach() for received in attentions[1:]]
            loss = loss + beta * divergence(attentions[0], centre(attentions, detach_mean))
        return loss

    return term


def outputs_of(net: Classifier, x: Tensor, trained: bool, with_maps: bool) -> tuple[Tensor, Tensor]:
    """Return the last feature maps (empty unless `with_maps`) and the logits of a network."""
    if with_maps:
        return maps_and_logits(net, x, trained)
    with torch.set_grad_enabled(trained):
        return x.new_empty(0), net(x)


def maps_and_logits(net: Classifier, x: Tensor, trained: bool) -> tuple[Tensor, Tensor]:
    """Return the last feature maps and the logits; without gradients to the parameters unless `trained`."""
    if trained:
        return net.maps_and_logits(x)
    with torch.no_grad():
        maps, logits = net.maps_and_logits(x)
    if net.attentive:
        return maps, logits
    maps.requires_grad_()
    return maps, net.head(net.pooled(maps))


def attention(net: Classifier, maps: Tensor, logits: Tensor, y: Tensor) -> Tensor:
    """Return the class activation maps of the classes `y` as distributions over positions."""
    return activation(net, maps, logits, y).flatten(1).softmax(1)


def activation(net: Classifier, maps: Tensor, logits: Tensor, y: Tensor) -> Tensor:
    """Return the class activation maps of the classes `y`, M = sum_l W_l F_l.

    W_l is the head's weight of the l-th map. If the head does not act on the maps directly, W_l is the gradient of the
    class's logit with respect to that map; for other heads the two are equal.
    """
    if net.attentive:
        weights = net.head.weight[y]
    else:
        (slopes,) = torch.autograd.grad(logits.gather(1, y[:, None]).sum(), maps, create_graph=True)
        weights = slopes.sum((2, 3))
    return torch.einsum("nc,nchw->nhw", weights, maps)


def centre(members: list[Tensor], detach: bool) -> Tensor:
    """Return the mean distribution over all views and the given models (local, and received if used)."""
    middle = torch.cat(members).mean(0)
    return middle.detach() if detach else middle


def agreement(predictions: list[Tensor], form: Form, detach: bool) -> Tensor:  # Eq. 2
    """Compute how far predictions (view x image x class) are from their mean: sum over views, mean over images."""
    middle = centre(predictions, detach)
    if form == "bce":  # as printed: it also sharpens predictions, and is zero only where all are 0 or 1
        middle = middle.clamp(TINY, 1 - TINY)
        return -(predictions[0] * middle.log() + (1 - predictions[0]) * (1 - middle).log()).sum((0, 2)).mean()
    if form == "kl":
        return divergence(predictions[0], middle)
    return divergence(torch.cat(predictions), middle) / len(predictions)  # js: mean over the models


def divergence(members: Tensor, middle: Tensor) -> Tensor:  # Eq. 3
    """Compute KL(member || middle), summed over members (views), mean over images."""
    return (members * (members.clamp(min=TINY).log() - middle.clamp(min=TINY).log())).sum((0, 2)).mean()
