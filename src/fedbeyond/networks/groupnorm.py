"""Replace BatchNorm by GroupNorm in a network."""

import math
from typing import Annotated, Literal, TypeVar

from torch import nn

from ..classifier import batchnorm_layers

Net = TypeVar("Net", bound=nn.Module)
Norm = Annotated[Literal["batch", "group"], "normalisation: BatchNorm, or GroupNorm, which has no running statistics"]
GROUPS = 32  # at most


def with_group_norm(net: Net) -> Net:
    """Replace every BatchNorm layer by GroupNorm (Wu, He; ECCV 2018), which has no running statistics.

    There are 32 groups as in the paper, or fewer if a group would have less than two channels; an odd number of
    channels forms one group.
    """
    for name, layer in list(batchnorm_layers(net)):
        channels = layer.num_features
        groups = math.gcd(GROUPS, channels // 2) if channels % 2 == 0 else 1
        net.set_submodule(name, nn.GroupNorm(groups, channels, layer.eps, layer.affine))
    return net
