"""FedADG's two small networks: one makes features of a class out of noise, one tells them from real features."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Projection = Literal["fixed", "trained"] | None


def noise_width(width: int) -> int:
    """How many random numbers features of this width are made from."""
    return max(1, width // 2)


class Generator(nn.Module):
    """From noise and a label to features as wide as the classifier's, none below zero (as those behind a ReLU)."""

    def __init__(self, width: int, classes: int, hot: float) -> None:
        super().__init__()
        self.classes, self.hot = classes, hot
        given = noise_width(width) + (classes if hot else 0)
        self.body = nn.Sequential(nn.Linear(given, width), nn.LeakyReLU(), nn.Linear(width, width), nn.ReLU())

    def forward(self, noise: Tensor, y: Tensor) -> Tensor:
        return self.body(_labelled(noise, y, self.classes, self.hot))  # type: ignore[no-any-return]


class Discriminator(nn.Module):
    """From features, projected at random to half their width, and a label to a number between 0 and 1."""

    projection: Tensor | None

    def __init__(self, width: int, classes: int, hot: float, projection: Projection) -> None:
        super().__init__()
        self.classes, self.hot = classes, hot
        inner = min(1024, max(1, width // 2)) if projection else width
        drawn = torch.empty(inner, width) if projection else None
        if projection == "trained":
            self.register_parameter("projection", nn.Parameter(drawn))  # type: ignore[arg-type]
        else:
            self.register_buffer("projection", drawn)
        self.hidden, self.out = nn.Linear(inner + (classes if hot else 0), inner), nn.Linear(inner, 1)
        self.redraw()

    @torch.no_grad()
    def redraw(self) -> None:
        """Numbers afresh, from torch's own stream."""
        for layer in (self.hidden, self.out):
            layer.reset_parameters()
        if self.projection is not None:
            self.projection.normal_(std=len(self.projection) ** -0.5)

    def forward(self, h: Tensor, y: Tensor) -> Tensor:
        low = h if self.projection is None else F.linear(h, self.projection)
        inner = F.leaky_relu(self.hidden(_labelled(low, y, self.classes, self.hot)))
        return torch.sigmoid(self.out(inner)).squeeze(1)


def _labelled(h: Tensor, y: Tensor, classes: int, hot: float) -> Tensor:
    """Features with their label behind them, as a vector with one entry of `hot` (zero: without it)."""
    return torch.cat((h, hot * F.one_hot(y, classes).to(h.dtype)), 1) if hot else h
