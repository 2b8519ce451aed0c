"""FedADG: Federated Learning with Domain Generalization.

Zhang, Lei, Shi, Huang, Chen; 2021; https://arxiv.org/abs/2111.10487

A generator, shared by all sites, makes reference features for each class. A private discriminator at each site learns
to distinguish them from the features of the site's images. The feature extractor learns to deceive it, and the
generator moves the reference to the features of all sites, so that the features of all sites become similar.
"""

from typing import Annotated, Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor
from torch.nn import functional as F

from .._method import Method, Share, parameters
from ..classifier import Classifier, Networks, Task, read, statistics_kept, write
from ..client import Client, descend, make_optimizer, training
from ..errors import ConfigError
from ..losses import cross_entropy
from ..networks.adversary import Discriminator, Generator, Projection, noise_width
from ..optimizers import Optimizer, plain_sgd, recall, remember
from ..server import averaging, uniform
from ..site import Site
from ..tree import Tree

PRESETS = {
    "paper": {"adversarial": 0.85, "discriminator_loss": "paper", "generator_loss": "away"},
    "official-vlcs": {
        "classify": 5,
        "align": 10,
        "smoothing": 0.2,
        "one_hot": 0.6,
        "projection": "trained",
        "discriminator_loss": "paper",
        "generator_loss": None,
    },
    "official-pacs": {"smoothing": 0.01, "one_hot": 0.7, "projection": "trained"},
}

DiscriminatorLoss = Literal["lsgan", "paper"]
GeneratorLoss = Literal["toward", "away"]
Reference = Literal["generator", "normal", "uniform", "laplace"]


def fedadg(
    classify: Annotated[NonNegativeInt, "epochs of cross-entropy only, E0"] = 3,
    align: Annotated[NonNegativeInt, "epochs of adversarial alignment after them, E1"] = 7,
    adversarial: Annotated[Share, "share of the adversarial loss in the model's loss; 0: no G and D"] = 0.15,
    smoothing: Annotated[Share, "label smoothing"] = 0.1,
    one_hot: Annotated[NonNegativeFloat, "value of the label in one-hot vectors for G and D; 0: no labels"] = 1.0,
    projection: Annotated[Projection, "random projection before the discriminator; none: no projection"] = "fixed",
    reference: Annotated[Reference, "source of reference features: generator or distribution"] = "generator",
    discriminator_loss: Annotated[DiscriminatorLoss, "discriminator's loss: least squares, or Eq. 2"] = "lsgan",
    generator_loss: Annotated[GeneratorLoss | None, "reference moves to the features, or away; none: fixed"] = "toward",
    generator_rate: Annotated[PositiveFloat, "generator's learning rate, as a multiple of the run's"] = 0.7,
    discriminator_rate: Annotated[PositiveFloat, "discriminator's rate, as a multiple of the run's"] = 0.7,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Align the features of all sites with one generated reference per class, by a private discriminator per site."""
    if classify + align == 0:
        raise ConfigError("fedadg: classify=0 and align=0 train for no epoch; set one of them to 1 or more")
    if not adversarial:  # without generator and discriminator
        client = training(cross_entropy(smoothing), optimizer=optimizer, epochs=classify + align)
        return Method(
            client=client, server=averaging, weighting=uniform, linear_aggregation=True, inputs_unchanged=True
        )
    shared = ("model", "generator") if reference == "generator" else ("model",)

    def networks(task: Task) -> Networks:
        model = task.classifier()
        width, classes = model.head.in_features, len(task.classes)
        nets: Networks = {"model": model, "discriminator": Discriminator(width, classes, one_hot, projection)}
        return nets | ({"generator": Generator(width, classes, one_hot)} if "generator" in shared else {})

    def train(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:  # Algorithm 1, ClientUpdate
        net, discriminator = site.nets["model"], site.nets["discriminator"]
        assert isinstance(net, Classifier)
        write(net, received["model"]).train()
        write(discriminator, private["discriminator"]).train()
        step_net = make_optimizer(optimizer, net.parameters(), site)
        step_discriminator = make_optimizer(optimizer, discriminator.parameters(), site, discriminator_rate)
        recall(step_discriminator, private["momentum"])
        generator = step_generator = None
        if reference == "generator":
            generator = write(site.nets["generator"], received["generator"]).train()
            step_generator = make_optimizer(optimizer, generator.parameters(), site, generator_rate)

        def classify_on(x: Tensor, y: Tensor) -> None:
            descend(step_net, lambda: label_loss(net.features(x), y), net)

        def align_on(x: Tensor, y: Tensor) -> None:
            descend(step_net, lambda: model_loss(net.features(x), y), net)  # step c5
            with torch.no_grad(), statistics_kept(net):
                h = net.features(x)
            noise = draw(reference, len(y), h.shape[1], site.rng).to(h)  # step c6; once: SAM evaluates losses twice
            fake = references(noise, y).detach()
            descend(step_discriminator, lambda: discriminator_objective(h, fake, y))  # step c7
            if step_generator and generator_loss:
                descend(step_generator, lambda: generator_objective(noise, y, generator_loss))  # step c8

        def label_loss(h: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(net.head(h), y, label_smoothing=smoothing)

        def model_loss(h: Tensor, y: Tensor) -> Tensor:  # Eq. 3, and the terms of Eq. 5 that depend on the model
            detected: Tensor = (1 - discriminator(h, y)).square().mean()
            return adversarial * detected + (1 - adversarial) * label_loss(h, y)

        def discriminator_objective(h: Tensor, fake: Tensor, y: Tensor) -> Tensor:  # Eq. 2
            return discrimination(discriminator(h, y), discriminator(fake, y), discriminator_loss)

        def generator_objective(noise: Tensor, y: Tensor, form: GeneratorLoss) -> Tensor:  # Eq. 4
            return generation(discriminator(references(noise, y), y), form)

        def references(noise: Tensor, y: Tensor) -> Tensor:
            return generator(noise, y) if generator else noise

        for batch in site.batches(classify):  # steps c2 and c3
            classify_on(*batch.merged)
        for batch in site.batches(align):  # steps c4 to c8
            align_on(*batch.merged)
        private = {"discriminator": read(discriminator), "momentum": remember(step_discriminator)}
        return {name: read(site.nets[name]) for name in shared}, private  # step c9

    return Method(
        client=Client(new_discriminator, {"train": train}),
        server=averaging,  # step s3, for model and generator
        linear_aggregation=True,
        weighting=uniform,
        networks=networks,
        needs={"features"},
        shared=shared,
        sends={"train": {name: parameters(name) for name in shared}},
        keeps={"discriminator", "momentum"},
        inputs_unchanged=True,
    )


def discrimination(real: Tensor, fake: Tensor, form: DiscriminatorLoss) -> Tensor:
    """Compute the discriminator's loss: outputs should be 0 for real features and 1 for the reference."""
    if form == "lsgan":
        return (real.square() + (1 - fake).square()).mean()
    return -((1 - real).square() + fake.square()).mean()


def generation(fake: Tensor, form: GeneratorLoss) -> Tensor:
    """Compute the generator's loss: the reference moves `toward` the features (paper's text) or `away` (Eq. 4)."""
    return (fake if form == "toward" else 1 - fake).square().mean()


def new_discriminator(site: Site) -> Tree:
    """Return the site's private state: its own discriminator with its own random projection, and no momentum."""
    discriminator = site.nets["discriminator"]
    assert isinstance(discriminator, Discriminator)
    discriminator.redraw()
    return {"discriminator": read(discriminator), "momentum": {}}


def draw(reference: Reference, count: int, width: int, rng: torch.Generator) -> Tensor:
    """Draw noise for the generator, or reference features from a fixed distribution."""
    if reference == "normal":
        return torch.randn(count, width, generator=rng)
    if reference == "generator":
        return torch.rand(count, noise_width(width), generator=rng)
    values = 2 * torch.rand(count, width, generator=rng) - 1
    if reference == "uniform":
        return values
    return -values.sign() * torch.log1p(-values.abs().clamp(max=1 - 1e-6)) / 2**0.5  # Laplace, scale 1/sqrt(2)
