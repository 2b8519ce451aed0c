"""MobileNetV2 (Sandler et al., CVPR 2018, https://arxiv.org/abs/1801.04381), parameter names as in torchvision."""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from ..classifier import Classifier, Task
from . import weights as files

WIDTH = 1280  # channels of the last maps
STAGES = (  # expansion, channels, blocks, stride of the first: the paper's table 2
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class Mobile(Classifier):
    """A MobileNetV2 body, and a linear head with dropout on the spatial average of its last maps."""

    stages = ("body.features.3", "body.features.6", "body.features.13")  # 1/4, 1/8, 1/16 of the input size

    def __init__(self, body: nn.Module, classes: int) -> None:
        super().__init__(body, WIDTH, classes)
        self.dropout = nn.Dropout(0.2)
        nn.init.normal_(self.head.weight, std=0.01)
        nn.init.zeros_(self.head.bias)

    def maps(self, x: Tensor) -> Tensor:
        """Return the last feature maps."""
        return self.body(files.normalised(x))  # type: ignore[no-any-return]

    def pooled(self, maps: Tensor) -> Tensor:
        """Return the features that the head receives, given the maps."""
        return self.dropout(super().pooled(maps))  # type: ignore[no-any-return]


class Body(nn.Module):
    """MobileNetV2 without its dropout and last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(_convolution(3, 32, size=3, stride=2))
        inputs = 32
        for expansion, channels, blocks, first in STAGES:
            for index in range(blocks):
                self.features.append(Inverted(inputs, channels, first if index == 0 else 1, expansion))
                inputs = channels
        self.features.append(_convolution(inputs, WIDTH, size=1))
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out")

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)  # type: ignore[no-any-return]


class Inverted(nn.Module):
    """An inverted residual block: wide inside, narrow at both ends."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.has_shortcut = stride == 1 and inputs == outputs
        self.conv = nn.Sequential()
        if expansion > 1:
            self.conv.append(_convolution(inputs, inner, size=1))
        self.conv.append(_convolution(inner, inner, size=3, stride=stride, groups=inner))
        self.conv.append(nn.Conv2d(inner, outputs, 1, bias=False))
        self.conv.append(nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.has_shortcut else self.conv(x)  # type: ignore[no-any-return]


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(inplace=True),
    )


def mobilenet_v2(weights: files.Weights = "") -> Callable[[Task], Classifier]:
    """Build MobileNetV2; parameters have the names of torchvision's."""
    return partial(_mobilenet, weights)


def _mobilenet(file: str, task: Task) -> Classifier:
    files.require_colours(task, "mobilenet_v2")
    net = Mobile(Body(), len(task.classes))
    return files.load(net, file, head="classifier.1") if file else net
