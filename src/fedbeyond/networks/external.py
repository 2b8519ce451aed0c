"""Any network of timm or torchvision, where they are installed: `timm:convnext_tiny`, `torchvision:efficientnet_b0`.

A network is tried on one black image when it is built, so that what does not fit is said before anything is trained.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from ..classifier import Classifier, Task
from ..errors import ConfigError
from . import weights as files


class Timm(Classifier):
    """A network of timm without its last layer, on images normalised as it expects them, and a linear head."""

    attentive = False  # what the head weighs may be more than the average of the maps
    spatial = True

    def __init__(self, body: Any, name: str, classes: int) -> None:
        super().__init__(body, getattr(body, "head_hidden_size", body.num_features), classes)
        self.name, self.mean, self.std = name, body.pretrained_cfg["mean"], body.pretrained_cfg["std"]

    def places(self, x: Tensor) -> Tensor:
        """What the network makes of images before it pools: maps, or tokens."""
        return self.body.forward_features(files.normalised(x, self.mean, self.std))  # type: ignore[operator, no-any-return]

    def maps(self, x: Tensor) -> Tensor:
        """The last feature maps, if the network has such."""
        if not self.spatial:
            raise ConfigError(f"{self.name} has no feature maps; take a method that does not ask for them")
        return self.places(x)

    def pooled(self, maps: Tensor) -> Tensor:
        """What the head sees of the maps."""
        return self.body.forward_head(maps)  # type: ignore[operator, no-any-return]

    def features(self, x: Tensor) -> Tensor:
        """What the head sees."""
        return self.pooled(self.places(x))


class Torchvision(Classifier):
    """A network of torchvision without its last layer, and a linear head; where it pools is not known."""

    attentive = False

    def __init__(self, body: nn.Module, name: str, width: int, classes: int) -> None:
        super().__init__(body, width, classes)
        self.name = name

    def maps(self, x: Tensor) -> Tensor:
        """Where it pools is not known."""
        raise ConfigError(f"{self.name} gives no feature maps; take one of our own networks, or one of timm's")

    def features(self, x: Tensor) -> Tensor:
        """What the head sees."""
        return self.body(files.normalised(x))  # type: ignore[no-any-return]


def timm(preset: str, weights: str = "") -> Callable[[Task], Classifier]:
    """Any network of timm, as timm:convnext_tiny; `weights` is a file of its numbers, none: fresh ones."""
    return partial(_timm, _named("timm", preset, "convnext_tiny"), weights)


def torchvision(preset: str, weights: str = "") -> Callable[[Task], Classifier]:
    """Any classifier of torchvision, as torchvision:efficientnet_b0; `weights` is a file of its numbers."""
    return partial(_torchvision, _named("torchvision", preset, "efficientnet_b0"), weights)


def _timm(name: str, file: str, task: Task) -> Classifier:
    package, full = _package("timm"), f"timm:{name}"
    files.require_colours(task, full)
    body = _made(full, lambda: package.create_model(name, pretrained=False, num_classes=0))
    net = Timm(body, full, len(task.classes))
    seen = _tried(net, net.places, task, full, body.pretrained_cfg.get("input_size", (3, 224, 224))[-1])
    net.spatial = seen.ndim == 4 and seen.shape[1] == body.num_features
    return files.load(net, file, head=body.pretrained_cfg["classifier"]) if file else net


def _torchvision(name: str, file: str, task: Task) -> Classifier:
    package, full = _package("torchvision"), f"torchvision:{name}"
    files.require_colours(task, full)
    body = _made(full, lambda: package.models.get_model(name, weights=None))
    linear = [place for place, part in body.named_modules() if isinstance(part, nn.Linear)]
    if not linear or getattr(body, "aux_logits", False):
        reason = "answers more than once" if linear else "does not end in a linear layer"
        raise ConfigError(f"{full} {reason}, so that it cannot be told features from head; take another network")
    head = linear[-1]
    width = body.get_submodule(head).in_features
    body.set_submodule(head, nn.Identity())
    net = Torchvision(body, full, width, len(task.classes))
    seen = _tried(net, net.features, task, full, 224)
    if seen.shape != (1, width):
        raise ConfigError(
            f"{full} gives {tuple(seen.shape)} where a row of {width} features was expected; take another"
        )
    return files.load(net, file, head=head) if file else net


def _named(package: str, preset: str, example: str) -> str:
    if preset == "default":
        raise ConfigError(f"{package} has many networks; say which, as in {package}:{example}")
    return preset


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(f"networks of {name} need that package; pip install 'fedbeyond[{name}]'") from None
    except RuntimeError as error:  # a torchvision that was built for another torch
        raise ConfigError(f"{name} cannot be imported beside this torch ({error}); install the build for it") from None


def _made(full: str, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except (RuntimeError, ValueError, TypeError) as error:
        package, _, name = full.partition(":")
        raise ConfigError(f"{package} cannot make a network {name!r} ({error}); choose another of its names") from None


@torch.no_grad()
def _tried(net: Classifier, look: Callable[[Tensor], Tensor], task: Task, full: str, usual: int) -> Tensor:
    """What a network sees in one black image of the task's size."""
    net.eval()
    image = torch.full((1, *task.shape), -1.0, device=net.head.weight.device)
    try:
        return look(image)
    except (AssertionError, RuntimeError, ValueError) as error:
        given = " x ".join(map(str, task.shape))
        raise ConfigError(
            f"{full} cannot take images of {given} ({error}); give the dataset another size, as size={usual}"
        ) from None
    finally:
        net.train()
