"""A small convolutional network."""

from collections.abc import Callable
from itertools import pairwise
from typing import Annotated

from pydantic import PositiveInt
from torch import nn

from ..classifier import Classifier, Task, require_images
from .groupnorm import Norm, with_group_norm


def convnet(
    width: Annotated[PositiveInt, "channels of the first convolution"] = 16, norm: Norm = "batch"
) -> Callable[[Task], Classifier]:
    """Build a network of four 3x3 convolutions with BatchNorm or GroupNorm, small enough for a laptop."""

    def build(task: Task) -> Classifier:
        require_images(task, "convnet")
        channels = (task.shape[0], width, 2 * width, 4 * width, 4 * width)
        body = nn.Sequential()
        for depth, (inputs, outputs) in enumerate(pairwise(channels)):
            body.append(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False))
            body.append(nn.BatchNorm2d(outputs))
            if depth < 3:
                body.append(nn.MaxPool2d(2, ceil_mode=True))
            body.append(nn.ReLU(inplace=True))  # after the pooling: same result, a quarter of the work
        net = Classifier(body, channels[-1], len(task.classes))
        net.stages = ("body.3", "body.7", "body.11")
        return with_group_norm(net) if norm == "group" else net

    return build
