"""FedADG: Federated Learning with Domain Generalization.

Zhang, Lei, Shi, Huang, Chen; 2021; https://arxiv.org/abs/2111.10487

A generator, shared by all sites, makes reference features for each class; at each site a discriminator, which never
leaves it, tells them from the features of the site's images. The feature extractor learns to be taken for the
reference, the reference moves to where the features of all sites are: so the sites' features become alike.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from ..classifier import Classifier, Networks, Task, read, resting, write
from ..client import Client, descend, stepper, training
from ..errors import ConfigError
from ..losses import cross_entropy
from ..method import Method, parameters
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

Epochs = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(gt=0)]
DiscriminatorLoss = Literal["lsgan", "paper"]
GeneratorLoss = Literal["toward", "away"]
Reference = Literal["generator", "normal", "uniform", "laplace"]


def fedadg(
    classify: Epochs = 3,
    align: Epochs = 7,
    adversarial: Share = 0.15,
    smoothing: Share = 0.1,
    one_hot: Annotated[float, Field(ge=0)] = 1.0,
    projection: Projection = "fixed",
    reference: Reference = "generator",
    discriminator_loss: DiscriminatorLoss = "lsgan",
    generator_loss: GeneratorLoss | None = "toward",
    generator_rate: Rate = 0.7,
    discriminator_rate: Rate = 0.7,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Features of all sites drawn to one reference, class by class, by a private discriminator at each site."""
    if classify + align == 0:
        raise ConfigError("fedadg: classify=0 and align=0 leave nothing to train; give one of them an epoch or more")
    if not adversarial:  # without generator and discriminator
        client = training(cross_entropy(smoothing), optimizer=optimizer, epochs=classify + align)
        return Method(client=client, server=averaging, weighting=uniform, sums=True)
    shared = ("model", "generator") if reference == "generator" else ("model",)

    def networks(task: Task) -> Networks:
        model = task.network(task)
        width, classes = model.head.in_features, len(task.classes)
        nets: Networks = {"model": model, "discriminator": Discriminator(width, classes, one_hot, projection)}
        return nets | ({"generator": Generator(width, classes, one_hot)} if "generator" in shared else {})

    def train(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:  # Algorithm 1, ClientUpdate
        net, discriminator = site.nets["model"], site.nets["discriminator"]
        assert isinstance(net, Classifier)
        write(net, received["model"]).train()
        write(discriminator, private["discriminator"]).train()
        step_net = stepper(optimizer, net.parameters(), site)
        step_discriminator = stepper(optimizer, discriminator.parameters(), site, discriminator_rate)
        recall(step_discriminator, private["momentum"])
        generator = step_generator = None
        if reference == "generator":
            generator = write(site.nets["generator"], received["generator"]).train()
            step_generator = stepper(optimizer, generator.parameters(), site, generator_rate)

        def classify_on(x: Tensor, y: Tensor) -> None:
            descend(step_net, lambda: error(net.features(x), y), net)

        def align_on(x: Tensor, y: Tensor) -> None:
            descend(step_net, lambda: masked(net.features(x), y), net)  # step c5
            with torch.no_grad(), resting(net):
                h = net.features(x)
            noise = draw(reference, len(y), h.shape[1], site.rng).to(h)  # step c6; once, since SAM looks twice
            made = refer(noise, y).detach()
            descend(step_discriminator, lambda: telling(h, made, y))  # step c7
            if step_generator and generator_loss:
                descend(step_generator, lambda: moving(noise, y, generator_loss))  # step c8

        def error(h: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(net.head(h), y, label_smoothing=smoothing)

        def masked(h: Tensor, y: Tensor) -> Tensor:  # Eq. 3, and as much of Eq. 5 as moves the model
            unmasked: Tensor = (1 - discriminator(h, y)).square().mean()
            return adversarial * unmasked + (1 - adversarial) * error(h, y)

        def telling(h: Tensor, made: Tensor, y: Tensor) -> Tensor:  # Eq. 2
            return confusion(discriminator(h, y), discriminator(made, y), discriminator_loss)

        def moving(noise: Tensor, y: Tensor, form: GeneratorLoss) -> Tensor:  # Eq. 4
            return displacement(discriminator(refer(noise, y), y), form)

        def refer(noise: Tensor, y: Tensor) -> Tensor:
            return generator(noise, y) if generator else noise

        for batch in site.batches(classify):  # steps c2 and c3
            classify_on(*batch.merged)
        for batch in site.batches(align):  # steps c4 to c8
            align_on(*batch.merged)
        kept = {"discriminator": read(discriminator), "momentum": remember(step_discriminator)}
        return {name: read(site.nets[name]) for name in shared}, kept  # step c9

    return Method(
        client=Client(own_discriminator, {"train": train}),
        server=averaging,  # step s3, of model and generator alike
        sums=True,
        weighting=uniform,
        networks=networks,
        shared=shared,
        sends={"train": {name: parameters(name) for name in shared}},
    )


def confusion(real: Tensor, meant: Tensor, form: DiscriminatorLoss) -> Tensor:
    """What a discriminator lowers: it should say 0 of features and 1 of the reference."""
    if form == "lsgan":
        return (real.square() + (1 - meant).square()).mean()
    return -((1 - real).square() + meant.square()).mean()


def displacement(meant: Tensor, form: GeneratorLoss) -> Tensor:
    """What a generator lowers: its reference moves `toward` the features, as the text says, or `away`, as Eq. 4."""
    return (meant if form == "toward" else 1 - meant).square().mean()


def own_discriminator(site: Site) -> Tree:
    """A discriminator, and a random projection in it, that are this site's alone."""
    discriminator = site.nets["discriminator"]
    assert isinstance(discriminator, Discriminator)
    discriminator.redraw()
    return {"discriminator": read(discriminator), "momentum": {}}


def draw(reference: Reference, count: int, width: int, rng: torch.Generator) -> Tensor:
    """Noise for the generator, or reference features of a fixed distribution."""
    if reference == "normal":
        return torch.randn(count, width, generator=rng)
    if reference == "generator":
        return torch.rand(count, noise_width(width), generator=rng)
    spread = 2 * torch.rand(count, width, generator=rng) - 1
    if reference == "uniform":
        return spread
    return -spread.sign() * torch.log1p(-spread.abs().clamp(max=1 - 1e-6)) / 2**0.5  # Laplace's, of scale 1/sqrt 2
