"""FedBN: Federated Learning on Non-IID Features via Local Batch Normalization.

Li, Jiang, Zhang, Kamp, Dou; ICLR 2021; https://arxiv.org/abs/2102.07623

All is averaged with equal weights, but each site goes on with its own BatchNorm layers (scales, shifts, statistics), so
that features of different styles are normalised each in its own way. An unseen domain gets the mean of these layers.
"""

from dataclasses import replace

from ..classifier import Networks, Task, classifier, norms
from ..errors import ConfigError
from ..method import Method
from ..networks import batchnorm
from ..optimizers import Optimizer, plain_sgd
from ..tree import Tree
from .fedavg import fedavg

PRESETS: dict[str, Tree] = {"paper": {}}


def fedbn(optimizer: Optimizer = plain_sgd) -> Method:
    """Uniform averaging under which each site keeps its own BatchNorm."""
    return replace(batchnorm.local(fedavg("uniform", optimizer)), networks=normalised)


def normalised(task: Task) -> Networks:
    """A classifier, refused if it has no BatchNorm: it would silently be averaged whole."""
    nets = classifier(task)
    if not any(norms(nets["model"])):
        raise ConfigError(
            f"fedbn keeps BatchNorm at each site, and {type(nets['model']).__name__.lower()} has none; take convnet, a "
            "ResNet or MobileNetV2, or the method fedavg(weighting=uniform)"
        )
    return nets
