"""MobileNetV2 (Sandler et al., CVPR 2018, https://arxiv.org/abs/1801.04381), named part by part as in torchvision."""

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
    """A MobileNetV2 body, and a linear head on the average of its last maps, some of which are dropped in training."""

    stages = ("body.features.3", "body.features.6", "body.features.13")  # a quarter, an eighth, a sixteenth of the size

    def __init__(self, body: nn.Module, classes: int) -> None:
        super().__init__(body, WIDTH, classes)
        self.dropout = nn.Dropout(0.2)
        nn.init.normal_(self.head.weight, std=0.01)
        nn.init.zeros_(self.head.bias)

    def maps(self, x: Tensor) -> Tensor:
        """The last feature maps."""
        return self.body(files.normalised(x))  # type: ignore[no-any-return]

    def pooled(self, maps: Tensor) -> Tensor:
        """What the head sees of the maps."""
        return self.dropout(super().pooled(maps))  # type: ignore[no-any-return]


class Body(nn.Module):
    """All of MobileNetV2 but its dropout and last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(_convolution(3, 32, size=3, stride=2))
        wide = 32
        for expansion, channels, blocks, first in STAGES:
            for place in range(blocks):
                self.features.append(Inverted(wide, channels, first if place == 0 else 1, expansion))
                wide = channels
        self.features.append(_convolution(wide, WIDTH, size=1))
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out")

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)  # type: ignore[no-any-return]


class Inverted(nn.Module):
    """A residual block that is wide inside and narrow at its ends."""

    def __init__(self, wide: int, out: int, stride: int, expansion: int) -> None:
        super().__init__()
        inside = wide * expansion
        self.carried = stride == 1 and wide == out
        self.conv = nn.Sequential()
        if expansion > 1:
            self.conv.append(_convolution(wide, inside, size=1))
        self.conv.append(_convolution(inside, inside, size=3, stride=stride, groups=inside))
        self.conv.append(nn.Conv2d(inside, out, 1, bias=False))
        self.conv.append(nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.carried else self.conv(x)  # type: ignore[no-any-return]


def _convolution(wide: int, out: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(wide, out, size, stride, padding=size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU6(inplace=True),
    )


def mobilenet_v2(weights: str = "") -> Callable[[Task], Classifier]:
    """MobileNetV2; `weights` is a file of torchvision's numbers, none: fresh ones."""
    return partial(_mobilenet, weights)


def _mobilenet(file: str, task: Task) -> Classifier:
    files.require_colours(task, "mobilenet_v2")
    net = Mobile(Body(), len(task.classes))
    return files.load(net, file, head="classifier.1") if file else net
