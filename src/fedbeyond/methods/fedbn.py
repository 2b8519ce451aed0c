"""FedBN: Federated Learning on Non-IID Features via Local Batch Normalization.

Li, Jiang, Zhang, Kamp, Dou; ICLR 2021; https://arxiv.org/abs/2102.07623

Models are averaged uniformly, but each site keeps its own BatchNorm layers (scales, shifts, running statistics). So the
features of each style are normalised separately. The model for an unseen domain has the mean of these layers.
"""

from dataclasses import replace

from .._method import Method
from ..classifier import Networks, Task, batchnorm_layers, classifier
from ..errors import ConfigError
from ..networks import batchnorm
from ..optimizers import Optimizer, plain_sgd
from ..tree import Tree
from .fedavg import fedavg

PRESETS: dict[str, Tree] = {"paper": {}}


def fedbn(optimizer: Optimizer = plain_sgd) -> Method:
    """Average models uniformly, while each site keeps its own BatchNorm layers."""
    return replace(batchnorm.local(fedavg("uniform", optimizer)), networks=with_batchnorm)


def with_batchnorm(task: Task) -> Networks:
    """Build a classifier; raise ConfigError if it has no BatchNorm, because fedbn would then be plain averaging."""
    nets = classifier(task)
    layers = [layer for _, layer in batchnorm_layers(nets["model"])]
    if all(getattr(layer, "frozen", False) for layer in layers):
        given = "all of them are frozen by train.part" if layers else f"{type(nets['model']).__name__.lower()} has none"
        raise ConfigError(
            f"fedbn needs BatchNorm layers that are trained, and {given}; use convnet, a ResNet or MobileNetV2, with "
            "train.part = 'all' or 'norm', or the method fedavg(weighting=uniform)"
        )
    return nets
