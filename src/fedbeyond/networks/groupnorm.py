"""Replace BatchNorm by GroupNorm in a network."""

import math
from typing import Literal, TypeVar

from torch import nn

from ..classifier import norms

Net = TypeVar("Net", bound=nn.Module)
Norm = Literal["batch", "group"]
GROUPS = 32  # of GroupNorm, at most


def with_group_norm(net: Net) -> Net:
    """Replace every BatchNorm layer by GroupNorm (Wu, He; ECCV 2018), which keeps no statistics of training images.

    There are 32 groups as in its paper, or fewer where a group would have less than two channels; an odd number of
    channels is one group.
    """
    for name, layer in list(norms(net)):
        channels = layer.num_features
        groups = math.gcd(GROUPS, channels // 2) if channels % 2 == 0 else 1
        net.set_submodule(name, nn.GroupNorm(groups, channels, layer.eps, layer.affine))
    return net
