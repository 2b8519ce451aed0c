"""Residual networks (He et al., CVPR 2016, https://arxiv.org/abs/1512.03385), parameter names as in torchvision.

A bottleneck has its stride in the 3x3 convolution, as in torchvision and unlike the paper.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from ..classifier import Classifier, Task
from ..errors import ConfigError
from . import weights as files
from .groupnorm import Norm, with_group_norm

Block = type["Basic"] | type["Bottleneck"]


class Residual(Classifier):
    """A ResNet body, and a linear head on the spatial average of its last maps."""

    stages = ("body.layer1", "body.layer2", "body.layer3")

    def maps(self, x: Tensor) -> Tensor:
        """Return the last feature maps."""
        return self.body(files.normalised(x))  # type: ignore[no-any-return]


class Body(nn.Module):
    """A ResNet without its last layer."""

    def __init__(self, block: Block, depths: tuple[int, int, int, int]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(64), nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        inputs = 64
        for stage, depth in enumerate(depths):
            inner = 64 * 2**stage
            blocks = nn.Sequential()
            for index in range(depth):
                blocks.append(block(inputs, inner, 2 if stage and index == 0 else 1))
                inputs = inner * block.growth
            self.add_module(f"layer{stage + 1}", blocks)
        self.width = inputs  # channels of the last maps
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        return self.layer4(self.layer3(self.layer2(self.layer1(x))))  # type: ignore[no-any-return, operator]


class Basic(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    growth = 1  # output channels per inner channel

    def __init__(self, inputs: int, inner: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, inner, 3, stride, padding=1, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(inner), nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(inner, inner, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.downsample = _shortcut(inputs, inner, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    """A 3x3 convolution between two 1x1 convolutions, with a shortcut."""

    growth = 4

    def __init__(self, inputs: int, inner: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, inner, 1, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(inner), nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, 4 * inner, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * inner)
        self.downsample = _shortcut(inputs, 4 * inner, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))
        out = self.bn3(self.conv3(out))
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))  # type: ignore[no-any-return]


def _shortcut(inputs: int, out: int, stride: int) -> nn.Sequential | None:
    """Return the projection that fits the input to the output, or None if they already fit."""
    if stride == 1 and inputs == out:
        return None
    return nn.Sequential(nn.Conv2d(inputs, out, 1, stride, bias=False), nn.BatchNorm2d(out))


def resnet18(weights: files.Weights = "", norm: Norm = "batch") -> Callable[[Task], Classifier]:
    """Build ResNet-18; parameters have the names of torchvision's."""
    return partial(_resnet, "resnet18", Basic, (2, 2, 2, 2), weights, norm)


def resnet34(weights: files.Weights = "", norm: Norm = "batch") -> Callable[[Task], Classifier]:
    """Build ResNet-34; parameters have the names of torchvision's."""
    return partial(_resnet, "resnet34", Basic, (3, 4, 6, 3), weights, norm)


def resnet50(weights: files.Weights = "", norm: Norm = "batch") -> Callable[[Task], Classifier]:
    """Build ResNet-50; parameters have the names of torchvision's."""
    return partial(_resnet, "resnet50", Bottleneck, (3, 4, 6, 3), weights, norm)


def resnet101(weights: files.Weights = "", norm: Norm = "batch") -> Callable[[Task], Classifier]:
    """Build ResNet-101; parameters have the names of torchvision's."""
    return partial(_resnet, "resnet101", Bottleneck, (3, 4, 23, 3), weights, norm)


def resnet152(weights: files.Weights = "", norm: Norm = "batch") -> Callable[[Task], Classifier]:
    """Build ResNet-152; parameters have the names of torchvision's."""
    return partial(_resnet, "resnet152", Bottleneck, (3, 8, 36, 3), weights, norm)


def _resnet(
    name: str, block: Block, depths: tuple[int, int, int, int], file: str, norm: Norm, task: Task
) -> Classifier:
    files.require_colours(task, name)
    body = Body(block, depths)
    net = Residual(body, body.width, len(task.classes))
    if norm == "group":
        if file:
            raise ConfigError(
                f"{name}(norm=group) cannot start from {file}, which holds a network with BatchNorm; "
                "remove norm=group or weights"
            )
        return with_group_norm(net)
    return files.load(net, file, head="fc") if file else net
