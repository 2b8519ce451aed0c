"""AlexNet as in torchvision (Krizhevsky, https://arxiv.org/abs/1404.5997), with the same parameter names."""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from ..classifier import Classifier, Task
from ..errors import ConfigError
from . import weights as files

SMALLEST = 63  # minimum height and width in pixels: one position is left after the last pooling


class Alex(Classifier):
    """AlexNet: its body and a linear head."""

    body: "Body"
    attentive = False  # the head acts on hidden layers, not on the maps
    stages = ("body.features.2", "body.features.5", "body.features.7")

    def maps(self, x: Tensor) -> Tensor:
        """Return the last feature maps."""
        return self.body.features(files.normalised(x))  # type: ignore[no-any-return]

    def pooled(self, maps: Tensor) -> Tensor:
        """Return the 4,096 features before the last layer."""
        return self.body.classifier(self.body.avgpool(maps).flatten(1))  # type: ignore[no-any-return]


class Body(nn.Module):
    """AlexNet without its last layer; its classifier maps the pooled features to 4,096."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, stride=4, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(6)
        self.classifier = nn.Sequential(
            nn.Dropout(),
            nn.Linear(256 * 6 * 6, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
        )


def alexnet(weights: files.Weights = "") -> Callable[[Task], Classifier]:
    """Build AlexNet; parameters have the names of torchvision's."""
    return partial(_alexnet, weights)


def _alexnet(file: str, task: Task) -> Classifier:
    files.require_colours(task, "alexnet")
    if min(task.shape[1:]) < SMALLEST:
        given = f"{task.shape[1]} x {task.shape[2]}"
        raise ConfigError(
            f"alexnet needs images of at least {SMALLEST} x {SMALLEST} pixels, these have {given}; set a larger size"
        )
    net = Alex(Body(), 4096, len(task.classes))
    return files.load(net, file, head="classifier.6") if file else net
