"""Domain Generalization with MixStyle.

Zhou, Yang, Qiao, Xiang; ICLR 2021; https://arxiv.org/abs/2104.02008

The means and standard deviations of an image's early feature maps are its style. With any method: while a network
trains, the images of a batch are given a mix of their own and another image's style, inside the network. Evaluation
does not change.
"""

from dataclasses import replace
from functools import partial
from typing import Annotated

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor, nn

from .._method import Method, Share
from ..classifier import Classifier, Networks, Task, at_stages
from ..tree import Tree

PRESETS: dict[str, Tree] = {"paper": {}}

SPATIAL = (2, 3)  # dimensions of feature maps: height and width


def mixstyle(
    method: Method,
    depth: Annotated[int, Field(ge=1, le=3), "stages after which styles are mixed, from the shallowest"] = 3,
    alpha: Annotated[PositiveFloat, "parameter of Beta(alpha, alpha), from which shares are drawn"] = 0.1,
    chance: Annotated[Share, "probability that a batch is mixed after a stage"] = 0.5,
) -> Method:
    """Mix the styles of early feature maps within a batch, after each of `depth` stages with probability `chance`."""

    def networks(task: Task) -> Networks:
        nets = method.networks(task)
        for name, net in nets.items():  # guides and teachers stay in evaluation mode: no mixing there
            if name == "model" or isinstance(net, Classifier):
                at_stages(net, "mixstyle", partial(while_training, net, alpha, chance), depth)
        return nets

    return replace(method, networks=networks, needs=method.needs | {"stages"})


def while_training(net: nn.Module, alpha: float, chance: float, maps: Tensor) -> Tensor | None:
    """Return the maps in mixed styles with probability `chance`; None (no change) otherwise and in evaluation."""
    if not net.training or float(torch.rand(())) >= chance:  # torch's global generator, as for dropout
        return None
    shares = torch.distributions.Beta(alpha, alpha).sample((len(maps), 1, 1, 1))
    return mixed(maps, shares.to(maps), torch.randperm(len(maps)).to(maps.device))


def mixed(maps: Tensor, shares: Tensor, partner: Tensor) -> Tensor:
    """Blend the style of each image with its partner's: `shares` are its own; no gradient passes through styles."""
    mean = maps.detach().mean(SPATIAL, keepdim=True)
    spread = (maps.detach().var(SPATIAL, correction=0, keepdim=True) + 1e-6).sqrt()
    means, spreads = (shares * style + (1 - shares) * style[partner] for style in (mean, spread))
    return (maps - mean) / spread * spreads + means
