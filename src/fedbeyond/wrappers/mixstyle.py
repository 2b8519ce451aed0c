"""Domain Generalization with MixStyle.

Zhou, Yang, Qiao, Xiang; ICLR 2021; https://arxiv.org/abs/2104.02008

The mean and spread of an image's early feature maps are its style. Over any method: while a network trains, images of
a batch swap part of their style with each other, within the network; nothing happens when it is asked.
"""

from dataclasses import replace
from functools import partial
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from ..classifier import Classifier, Networks, Task, at_stages
from ..method import Method
from ..tree import Tree

PRESETS: dict[str, Tree] = {"paper": {}}

PLACES = (2, 3)  # of a map


def mixstyle(
    method: Method,
    depth: Annotated[int, Field(ge=1, le=3)] = 3,
    alpha: Annotated[float, Field(gt=0)] = 0.1,
    chance: Annotated[float, Field(ge=0, le=1)] = 0.5,
) -> Method:
    """Styles of early feature maps mixed within a batch (with some chance), on top of any method."""

    def networks(task: Task) -> Networks:
        nets = method.networks(task)
        for name, net in nets.items():  # those that only guide are in evaluation mode, and see no mixing
            if name == "model" or isinstance(net, Classifier):
                at_stages(net, "mixstyle", partial(while_training, net, alpha, chance), depth)
        return nets

    return replace(method, networks=networks)


def while_training(net: nn.Module, alpha: float, chance: float, maps: Tensor) -> Tensor | None:
    """The maps in mixed styles, if their network trains and the coin says so."""
    if not net.training or float(torch.rand(())) >= chance:  # torch's own stream, as dropout
        return None
    shares = torch.distributions.Beta(alpha, alpha).sample((len(maps), 1, 1, 1))
    return mixed(maps, shares.to(maps), torch.randperm(len(maps)).to(maps.device))


def mixed(maps: Tensor, shares: Tensor, partner: Tensor) -> Tensor:
    """The maps with `shares` of their own style, the rest of their partners'; no gradient passes through styles."""
    mean = maps.detach().mean(PLACES, keepdim=True)
    spread = (maps.detach().var(PLACES, correction=0, keepdim=True) + 1e-6).sqrt()
    means, spreads = (shares * style + (1 - shares) * style[partner] for style in (mean, spread))
    return (maps - mean) / spread * spreads + means
