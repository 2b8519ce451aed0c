"""A small convolutional network."""

from collections.abc import Callable
from itertools import pairwise
from typing import Annotated

from pydantic import Field
from torch import nn

from ..classifier import Classifier, Task, require_images
from .groupnorm import Norm, with_group_norm


def convnet(width: Annotated[int, Field(gt=0)] = 16, norm: Norm = "batch") -> Callable[[Task], Classifier]:
    """Four 3x3 convolutions with BatchNorm or GroupNorm: small enough for a laptop, deep enough to compare methods."""

    def build(task: Task) -> Classifier:
        require_images(task, "convnet")
        channels = (task.shape[0], width, 2 * width, 4 * width, 4 * width)
        body = nn.Sequential()
        for depth, (wide, wider) in enumerate(pairwise(channels)):
            body.append(nn.Conv2d(wide, wider, 3, padding=1, bias=False))
            body.append(nn.BatchNorm2d(wider))
            if depth < 3:
                body.append(nn.MaxPool2d(2, ceil_mode=True))
            body.append(nn.ReLU(inplace=True))  # behind the pooling: the same numbers from a quarter of the places
        net = Classifier(body, channels[-1], len(task.classes))
        net.stages = ("body.3", "body.7", "body.11")
        return with_group_norm(net) if norm == "group" else net

    return build
