"""FedDAG's generator: a fully convolutional network from an image to a perturbation of it, between -1 and 1."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


class Residual(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*convolution(width, width), nn.ReLU(), *convolution(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)  # type: ignore[no-any-return]


class Fcn(nn.Module):
    """A convolution, three residual blocks, the image mean as context at each position, and two 1x1 convolutions."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*convolution(channels, width), nn.ReLU(), *(Residual(width) for _ in range(3)))
        self.context = nn.Conv2d(2 * width, width, 1)
        self.out = nn.Conv2d(width, channels, 1)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias) if layer.bias is not None else None

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        local, pooled = self.context.weight.chunk(2, 1)  # the mean is the same at every position: convolve it once
        mean = F.conv2d(h.mean((2, 3), keepdim=True), pooled, self.context.bias)
        return torch.tanh(self.out(torch.relu(F.conv2d(h, local) + mean)))


def convolution(inputs: int, outputs: int) -> tuple[nn.Module, nn.Module]:
    """Return a 3x3 convolution with reflected edges and an instance normalisation, which has no running statistics."""
    return nn.Conv2d(inputs, outputs, 3, padding=1, padding_mode="reflect", bias=False), Normalised()


class Normalised(nn.Module):
    """Instance normalisation: each channel of each image gets mean 0 and variance 1."""

    def forward(self, x: Tensor) -> Tensor:
        return _Normalise.apply(x)  # type: ignore[no-any-return, no-untyped-call]


class _Normalise(torch.autograd.Function):
    """InstanceNorm2d for channels-last maps: it does not change the layout, and its backward pass works by rows.

    torch's own backward pass (GroupNorm with one channel per group) is four times slower on channels-last maps, which
    is a fifth of the time to train a generator.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        count, channels, height, width = x.shape
        y, _, scale = torch.native_group_norm(x, None, None, count, channels, height * width, channels, 1e-5)
        ctx.save_for_backward(y, scale)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        y, scale = ctx.saved_tensors
        channels, width = y.shape[1], y.shape[3]

        def rows(maps: Tensor) -> Tensor:
            return maps.permute(0, 2, 3, 1).flatten(2)  # images x height x (width * channels)

        def spatial_mean(lines: Tensor) -> Tensor:
            by_column = lines.mean(1).view(-1, width, channels)
            return by_column.mean(1).repeat(1, width)[:, None]

        output, outer = rows(y), rows(gradient)
        inner = (outer - spatial_mean(outer)) - output * spatial_mean(outer * output)
        inner *= scale.repeat(1, width)[:, None]
        return inner.view(-1, y.shape[2], width, channels).permute(0, 3, 1, 2)
