"""FedDAG's generator: a fully convolutional network from an image to a perturbation of it, between -1 and 1."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Residual(nn.Module):
    """Two convolutions whose result is added to what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*convolution(width, width), nn.ReLU(inplace=True), *convolution(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)  # type: ignore[no-any-return]


class Fcn(nn.Module):
    """A convolution, three residual blocks, the mean over the image beside each place, and two 1x1 convolutions."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *convolution(channels, width), nn.ReLU(inplace=True), *(Residual(width) for _ in range(3))
        )
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
    # groups of one channel: InstanceNorm2d does the same, but lays channels-last maps out anew and back each time
    normalised = nn.GroupNorm(wider, wider, affine=False)
    return nn.Conv2d(wide, wider, 3, padding=1, padding_mode="reflect", bias=False), normalised
