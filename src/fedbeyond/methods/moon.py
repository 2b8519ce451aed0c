"""Model-Contrastive Federated Learning.

Li, He, Song; CVPR 2021; https://arxiv.org/abs/2103.16257

MOON: the projected features z of an image should be near to those of the received model, z_glob, and far from those
of the site's own model of the round before, z_prev. Added to each site's loss:
mu * -log( e^{cos(z, z_glob)/T} / (e^{cos(z, z_glob)/T} + e^{cos(z, z_prev)/T}) ).
"""

from typing import Annotated, cast

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from .._method import Method, parameters
from ..batch import Batch
from ..classifier import Classifier, Networks, Task
from ..client import Local, Term, training, upload
from ..optimizers import Optimizer, plain_sgd
from ..server import averaging
from ..tree import Tree

PRESETS = {"paper": {"mu": 5.0}, "official": {"mu": 1.0}}


def moon(
    mu: Annotated[NonNegativeFloat, "weight of the contrastive loss, mu in Eq. 3"] = 1.0,
    temperature: Annotated[PositiveFloat, "temperature of the contrastive loss, T in Eq. 2"] = 0.5,
    width: Annotated[PositiveInt, "output features of the projection"] = 256,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Pull projected features to those of the received model, and away from those of the site's last model."""

    def networks(task: Task) -> Networks:
        models = {name: task.classifier() for name in ("model", "guide", "last")}
        features = models["model"].head.in_features
        heads = {name: projection(features, width) for name in ("projection", "guide_projection", "last_projection")}
        return {**models, **heads}

    return Method(
        client=training(contrast(mu, temperature), optimizer=optimizer, along=("projection",), finish=keep),
        server=averaging,
        linear_aggregation=True,
        networks=networks,
        needs={"features"},
        shapes_features=True,
        shared=("model", "projection"),
        sends={"train": {"model": parameters("model"), "projection": parameters("projection")}},
        keeps={"model", "projection"},
        inputs_unchanged=True,
    )


def projection(width: int, out: int) -> nn.Module:
    """Build a projection head: two layers, the first as wide as the features."""
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, out))


def contrast(mu: float, temperature: float) -> Term:
    """Return a loss: cross-entropy plus mu times the model-contrastive loss, from one forward pass."""

    def term(local: Local, batch: Batch) -> Tensor:  # Eq. 3
        x, y = batch.merged
        h = local.net.features(x)
        loss = F.cross_entropy(local.net.head(h), y)
        if not (mu and local.private):  # in the first round there is no last model
            return loss
        last = cast(Classifier, local.frozen("last", local.private["model"]))
        with torch.no_grad():
            near = local.frozen("guide_projection", local.received["projection"])(local.guide.features(x))
            far = local.frozen("last_projection", local.private["projection"])(last.features(x))
        return loss + mu * model_contrastive(local.along["projection"](h), near, far, temperature)

    return term


def model_contrastive(z: Tensor, near: Tensor, far: Tensor, temperature: float) -> Tensor:  # Eq. 2
    """Compute -log( e^a / (e^a + e^b) ) = log(1 + e^(b - a)) of the similarities a and b, averaged over images."""
    return F.softplus((F.cosine_similarity(z, far) - F.cosine_similarity(z, near)) / temperature).mean()


def keep(local: Local) -> tuple[Tree, Tree]:
    """Send the trained networks, and keep them for the next round."""
    reply, _ = upload(local)
    return reply, reply
