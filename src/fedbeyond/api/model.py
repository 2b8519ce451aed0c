"""The model of a run as a torch module."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ..classifier import logits
from ..images import pixels


class Model(nn.Module):
    """The trained network of a run, with probabilities that are calibrated on the sites' validation samples."""

    def __init__(self, net: nn.Module, classes: Sequence[str], temperature: float) -> None:
        super().__init__()
        self.net, self.classes, self.temperature = net, tuple(classes), temperature

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits for images (bytes, or floats that the network takes as they are) or rows."""
        return self.net(pixels(inputs))  # type: ignore[no-any-return]

    @torch.no_grad()
    def predict_proba(self, inputs: Tensor | np.ndarray) -> Tensor:
        """Return the probability of each class for images or rows, batch by batch, in evaluation mode."""
        was_training = self.training
        try:
            return (logits(self.net, torch.as_tensor(inputs)) / self.temperature).softmax(1)
        finally:
            self.train(was_training)

    def predict(self, inputs: Tensor | np.ndarray) -> list[str]:
        """Return the name of the most probable class for images or rows."""
        return [self.classes[index] for index in self.predict_proba(inputs).argmax(1).tolist()]
