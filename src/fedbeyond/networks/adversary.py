"""FedADG's two small networks: a generator of features from noise and a label, and a discriminator."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Projection = Literal["fixed", "trained"] | None


def noise_width(width: int) -> int:
    """Return the number of noise inputs for features of this width."""
    return max(1, width // 2)


class Generator(nn.Module):
    """A network from noise and a label to non-negative features (as after a ReLU) of the classifier's width."""

    def __init__(self, width: int, classes: int, hot: float) -> None:
        super().__init__()
        self.classes, self.hot = classes, hot
        inputs = noise_width(width) + (classes if hot else 0)
        self.body = nn.Sequential(nn.Linear(inputs, width), nn.LeakyReLU(), nn.Linear(width, width), nn.ReLU())

    def forward(self, noise: Tensor, y: Tensor) -> Tensor:
        return self.body(_labelled(noise, y, self.classes, self.hot))  # type: ignore[no-any-return]


class Discriminator(nn.Module):
    """A network from features (randomly projected to half their width) and a label to a number between 0 and 1."""

    projection: Tensor | None

    def __init__(self, width: int, classes: int, hot: float, projection: Projection) -> None:
        super().__init__()
        self.classes, self.hot = classes, hot
        inner = min(1024, max(1, width // 2)) if projection else width
        matrix = torch.empty(inner, width) if projection else None
        if projection == "trained":
            self.register_parameter("projection", nn.Parameter(matrix))  # type: ignore[arg-type]
        else:
            self.register_buffer("projection", matrix)
        self.hidden, self.out = nn.Linear(inner + (classes if hot else 0), inner), nn.Linear(inner, 1)
        self.redraw()

    @torch.no_grad()
    def redraw(self) -> None:
        """Initialise all parameters and the projection again, with torch's global generator."""
        for layer in (self.hidden, self.out):
            layer.reset_parameters()
        if self.projection is not None:
            self.projection.normal_(std=len(self.projection) ** -0.5)

    def forward(self, h: Tensor, y: Tensor) -> Tensor:
        projected = h if self.projection is None else F.linear(h, self.projection)
        inner = F.leaky_relu(self.hidden(_labelled(projected, y, self.classes, self.hot)))
        return torch.sigmoid(self.out(inner)).squeeze(1)


def _labelled(h: Tensor, y: Tensor, classes: int, hot: float) -> Tensor:
    """Append the label to the features as a one-hot vector with the value `hot`; with 0 append nothing."""
    return torch.cat((h, hot * F.one_hot(y, classes).to(h.dtype)), 1) if hot else h
