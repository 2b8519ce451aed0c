"""FedSR: A Simple and Effective Domain Generalization Method for Federated Learning.

Nguyen, Torr, Lim; NeurIPS 2022; https://openreview.net/forum?id=mrt90D00aQX

Features are drawn from a Gaussian that the network computes from an image. Two regularisers limit the information in
them: their norm is kept small (L2R), and their distribution close to one that depends only on the class (CMI). Each
site learns that class distribution itself.
"""

import math
from collections.abc import Set
from typing import Annotated

import torch
from pydantic import NonNegativeFloat
from torch import Tensor, nn
from torch.nn import functional as F

from .._method import Method, parameters
from ..batch import Batch
from ..classifier import Classifier, Networks, Task, read
from ..client import Local, Term, no_state, training
from ..errors import ConfigError
from ..optimizers import Optimizer, plain_sgd
from ..server import averaging, uniform
from ..site import Site
from ..tree import Tree

PRESETS = {"paper": {"square": True}, "official": {"square": False}}

SAMPLES = 20  # draws of the features of an image in evaluation
TINY = 1e-6


def fedsr(
    l2r: Annotated[NonNegativeFloat, "weight of the norm of the features, alpha_L2R; 0: none"] = 0.01,
    cmi: Annotated[NonNegativeFloat, "weight of the KL from the class's Gaussian, alpha_CMI; 0: none"] = 0.001,
    square: Annotated[bool, "penalise the squared norm instead of the norm"] = False,
    share_r: Annotated[bool, "average r(z|y) and C over the sites as well"] = False,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Train with Gaussian features of small norm, close to a Gaussian of their class."""
    if share_r and not cmi:
        raise ConfigError(
            "fedsr: share_r shares what cmi learns, but cmi=0 learns nothing; set cmi > 0, or remove share_r"
        )
    shared = ("model", "reference") if share_r else ("model",)

    def networks(task: Task) -> Networks:
        model = Gaussian(task.classifier(), len(task.classes))
        return {"model": model} | ({"reference": Reference(*model.head.weight.shape)} if cmi else {})

    return Method(
        client=training(
            simple(l2r, cmi, square),
            optimizer=optimizer,
            init=new_reference if cmi and not share_r else no_state,
            along=("reference",) if cmi else (),
        ),
        server=averaging,
        linear_aggregation=True,
        weighting=uniform,
        networks=networks,
        needs={"features"},
        shared=shared,
        sends={"train": {name: parameters(name) for name in shared}},
        keeps={"reference"} if cmi and not share_r else set(),
        inputs_unchanged=True,
    )


class Gaussian(Classifier):
    """A classifier whose head gets drawn features; the network computes the mean and the spread of each feature."""

    body: Classifier
    attentive = False  # the input of the head is not an average of maps

    def __init__(self, body: Classifier, classes: int) -> None:
        width = body.head.in_features
        super().__init__(body, width, classes)
        body.head = nn.Linear(width, 2 * width)
        self.noise = torch.randn(SAMPLES, width, generator=torch.Generator().manual_seed(0))  # the same for all images

    @property
    def provides(self) -> Set[str]:
        """What the network inside gives."""
        return self.body.provides

    @property
    def stages(self) -> tuple[str, ...]:  # type: ignore[override]
        """The stages of the network inside."""
        return tuple(f"body.{stage}" for stage in self.body.stages)

    def gaussian(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the mean and the spread (standard deviation) of the features of each image."""
        mean, spread = self.body(x).chunk(2, 1)
        return mean, F.softplus(spread) + TINY

    def maps(self, x: Tensor) -> Tensor:
        """Compute the last feature maps."""
        return self.body.maps(x)

    def pooled(self, maps: Tensor) -> Tensor:
        """Compute the mean of the features from the maps."""
        moments: Tensor = self.body.head(self.body.pooled(maps))
        return moments.chunk(2, 1)[0]

    def features(self, x: Tensor) -> Tensor:
        """Compute the mean of the features."""
        return self.gaussian(x)[0]

    def maps_and_logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the last feature maps, and the logits of the mean of the features."""
        maps, moments = self.body.maps_and_logits(x)
        return maps, self.head(moments.chunk(2, 1)[0])

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits of one draw of the features in training, the log of the mean probability in evaluation."""
        mean, spread = self.gaussian(x)
        if self.training:
            return self.head(draw(mean, spread))  # type: ignore[no-any-return]
        drawn = [self.head(mean + spread * noise).log_softmax(1) for noise in self.noise.to(mean)]
        return torch.stack(drawn).logsumexp(0) - math.log(SAMPLES)


class Reference(nn.Module):
    """The reference r(z|y): a mean and a spread of the features of each class; and C, which scales features."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(classes, width))
        self.spread = nn.Parameter(torch.ones(classes, width))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, mean: Tensor, spread: Tensor, y: Tensor) -> Tensor:
        """Compute KL(N(C mean, C spread) || r(z|y)), summed over features and averaged over images."""
        centre, width = self.mean[y], F.softplus(self.spread)[y] + TINY
        mean, spread = self.scale * mean, self.scale.abs() * spread + TINY
        far = (spread.square() + (mean - centre).square()) / (2 * width.square())
        return (width.log() - spread.log() + far - 0.5).sum(1).mean()


def new_reference(site: Site) -> Tree:
    """Return the private state of a site that has not trained: a new reference."""
    reference = site.nets["reference"]
    assert isinstance(reference, Reference)
    return {"reference": read(Reference(*reference.mean.shape))}


def draw(mean: Tensor, spread: Tensor) -> Tensor:
    """Draw features from a Gaussian."""
    return mean + spread * torch.randn_like(mean)


def simple(l2r: float, cmi: float, square: bool) -> Term:
    """Return a loss: cross-entropy of one draw of the features, plus the two regularisers."""

    def term(local: Local, batch: Batch) -> Tensor:
        net, (x, y) = local.net, batch.merged
        assert isinstance(net, Gaussian)
        mean, spread = net.gaussian(x)
        z = draw(mean, spread)
        loss = F.cross_entropy(net.head(z), y)
        if l2r:
            length = z.square().sum(1) if square else torch.linalg.vector_norm(z, dim=1)
            loss = loss + l2r * length.mean()
        if cmi:
            loss = loss + cmi * local.along["reference"](mean, spread, y)
        return loss

    return term
