"""FedDAG's generator: a fully convolutional network from an image to a perturbation of it, between -1 and 1."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


class Residual(nn.Module):
    """Two convolutions whose result is added to what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*convolution(width, width), nn.ReLU(), *convolution(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)  # type: ignore[no-any-return]


class Fcn(nn.Module):
    """A convolution, three residual blocks, the mean over the image beside each place, and two 1x1 convolutions."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*convolution(channels, width), nn.ReLU(), *(Residual(width) for _ in range(3)))
        self.context = nn.Conv2d(2 * width, width, 1)
        self.out = nn.Conv2d(width, channels, 1)
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.normal_(part.weight, std=0.02)
                nn.init.zeros_(part.bias) if part.bias is not None else None

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        here, around = self.context.weight.chunk(2, 1)  # the mean is the same beside every place: it is mixed once
        mean = F.conv2d(h.mean((2, 3), keepdim=True), around, self.context.bias)
        return torch.tanh(self.out(torch.relu(F.conv2d(h, here) + mean)))


def convolution(wide: int, wider: int) -> tuple[nn.Module, nn.Module]:
    """3x3 with mirrored edges, then each channel of each image normalised: no statistics to keep or to share."""
    return nn.Conv2d(wide, wider, 3, padding=1, padding_mode="reflect", bias=False), Normalised()


class Normalised(nn.Module):
    """Each channel of each image with mean 0 and variance 1."""

    def forward(self, x: Tensor) -> Tensor:
        return _Normalise.apply(x)  # type: ignore[no-any-return, no-untyped-call]


class _Normalise(torch.autograd.Function):
    """What InstanceNorm2d does, which lays channels-last maps out anew, with a slope that goes through them by rows.

    torch's own slope (of GroupNorm, a channel a group) goes through channels-last maps number by number: it takes four
    times as long, a fifth of what a generator takes to train.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        count, channels, high, wide = x.shape
        y, _, scale = torch.native_group_norm(x, None, None, count, channels, high * wide, channels, 1e-5)
        ctx.save_for_backward(y, scale)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        y, scale = ctx.saved_tensors
        channels, wide = y.shape[1], y.shape[3]

        def rows(maps: Tensor) -> Tensor:
            return maps.permute(0, 2, 3, 1).flatten(2)  # images x height x (width * channels)

        def middle(lines: Tensor) -> Tensor:
            by_place = lines.mean(1).view(-1, wide, channels)
            return by_place.mean(1).repeat(1, wide)[:, None]

        seen, given = rows(y), rows(slope)
        moved = (given - middle(given)) - seen * middle(given * seen)
        moved *= scale.repeat(1, wide)[:, None]
        return moved.view(-1, y.shape[2], wide, channels).permute(0, 3, 1, 2)
