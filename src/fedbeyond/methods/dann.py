"""Domain-Adversarial Training of Neural Networks.

Ganin, Ustinova, Ajakan, Germain, Larochelle, Laviolette, Marchand, Lempitsky; JMLR 2016; https://arxiv.org/abs/1505.07818

A discriminator learns to tell from features which source domain an image is of; the gradient that it sends back is
reversed, so that features learn not to tell. A reference, not a federation: it needs images of several domains in one
batch.
"""

import math
from typing import Annotated, cast

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from ..batch import Batch
from ..classifier import Classifier, Networks, Task
from ..client import Local, training
from ..method import Method, parameters
from ..optimizers import Optimizer, plain_sgd
from ..server import averaging
from .irm import counted, unplayed

PRESETS = {"paper": {"ramp": True}, "domainbed": {}}


def dann(
    weight: Annotated[float, Field(ge=0)] = 1.0,
    ramp: bool = False,
    width: Annotated[int, Field(gt=0)] = 256,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Pooled training, with features that do not tell a discriminator which domain they are of."""

    def networks(task: Task) -> Networks:
        model = task.network(task)
        layers = nn.Linear(model.head.in_features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        return {"model": model, "discriminator": nn.Sequential(*layers, nn.Linear(width, task.sources))}

    def adversarial(local: Local, batch: Batch) -> Tensor:  # Eqs. 9 to 15
        x, y = batch.merged
        net = cast(Classifier, local.net)
        features = net.features(x)
        told = local.along["discriminator"](reversed(features, weight * grown(local) if ramp else weight))
        return F.cross_entropy(net.head(features), y) + F.cross_entropy(told, batch.origins)

    return Method(
        client=training(adversarial, optimizer=optimizer, init=unplayed, finish=counted, along=("discriminator",)),
        server=averaging,
        weighting=None,
        sends={"train": {"model": parameters("model"), "discriminator": parameters("discriminator")}},
        networks=networks,
        shared=("model", "discriminator"),
        pooled=True,
        least=2,
    )


def reversed(features: Tensor, weight: float) -> Tensor:
    """The features as they are, their gradient times -weight: the discriminator's own is not changed by it."""
    still = features.detach()
    return still - weight * (features - still)


def grown(local: Local) -> float:
    """Section 5.2.2: lambda = 2 / (1 + exp(-10 p)) - 1, from 0 towards 1 as training goes on."""
    site = local.site
    here = min(1.0, local.steps * site.batch_size / (site.epochs * site.size))
    return math.tanh(5 * (int(local.private["played"]) + here) / site.rounds)
