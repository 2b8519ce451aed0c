"""Domain-Adversarial Training of Neural Networks.

Ganin, Ustinova, Ajakan, Germain, Larochelle, Laviolette, Marchand, Lempitsky; JMLR 2016; https://arxiv.org/abs/1505.07818

A discriminator learns to predict the source domain of an image from its features. Its gradient is reversed on the way
into the features, so that they become useless for that. A pooled reference: it needs images of several domains in one
batch.
"""

import math
from typing import Annotated

from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from .._method import Method, parameters
from ..batch import Batch
from ..classifier import Networks, Task
from ..client import Local, training
from ..optimizers import Optimizer, plain_sgd
from ..server import averaging
from .irm import upload_and_count, zero_rounds

PRESETS = {"paper": {"ramp": True}, "domainbed": {}}


def dann(
    weight: Annotated[NonNegativeFloat, "weight of the reversed gradient, lambda"] = 1.0,
    ramp: Annotated[bool, "raise the weight from 0 during the run"] = False,
    width: Annotated[PositiveInt, "width of the discriminator's layers"] = 256,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Train on pooled data, with features from which a discriminator cannot predict the domain."""

    def networks(task: Task) -> Networks:
        model = task.classifier()
        layers = nn.Linear(model.head.in_features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        return {"model": model, "discriminator": nn.Sequential(*layers, nn.Linear(width, task.sources))}

    def adversarial(local: Local, batch: Batch) -> Tensor:  # Eqs. 9 to 15
        x, y = batch.merged
        features = local.net.features(x)
        domain_logits = local.along["discriminator"](
            reverse_gradient(features, weight * ramp_factor(local) if ramp else weight)
        )
        return F.cross_entropy(local.net.head(features), y) + F.cross_entropy(domain_logits, batch.origins)

    return Method(
        client=training(
            adversarial, optimizer=optimizer, init=zero_rounds, finish=upload_and_count, along=("discriminator",)
        ),
        server=averaging,
        weighting=None,
        sends={"train": {"model": parameters("model"), "discriminator": parameters("discriminator")}},
        keeps={"played"},
        uses_total={"dann(ramp=true)"} if ramp else set(),
        networks=networks,
        needs={"features"},
        shapes_features=True,
        shared=("model", "discriminator"),
        pooled=True,
        min_clients=2,
        inputs_unchanged=True,
    )


def reverse_gradient(features: Tensor, weight: float) -> Tensor:
    """Return the features unchanged, with their gradient multiplied by -weight; the discriminator's is not changed."""
    constant = features.detach()
    return constant - weight * (features - constant)


def ramp_factor(local: Local) -> float:
    """Compute lambda = 2 / (1 + exp(-10 p)) - 1 of Section 5.2.2, where p is the finished share of the training."""
    site = local.site
    this_round = min(1.0, local.steps * site.batch_size / (site.epochs * site.size))
    return math.tanh(5 * (int(local.private["played"]) + this_round) / site.rounds)
