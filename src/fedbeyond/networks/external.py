"""Networks of timm and torchvision, if installed: `timm:convnext_tiny`, `torchvision:efficientnet_b0`.

A new network is tested on one black image, so that an unsuitable network is reported before training.
"""

import re
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
    """A timm network without its last layer, with the input normalisation it expects, and a linear head."""

    attentive = False  # the head may use more than the average of the maps
    provides = frozenset({"features"})  # and maps, if the features before pooling are maps

    def __init__(self, body: Any, classes: int) -> None:
        super().__init__(body, getattr(body, "head_hidden_size", body.num_features), classes)
        self.mean, self.std = body.pretrained_cfg["mean"], body.pretrained_cfg["std"]
        known = {name for name, _ in body.named_modules()}
        self.blocks = tuple(
            i["module"] for i in getattr(body, "feature_info", ()) if i.get("module", "") in known - {""}
        )

    @property
    def cuts(self) -> tuple[str, ...]:
        """Names of the ends of its blocks, which timm calls modules of features, except the last."""
        return tuple(f"body.{block}" for block in self.blocks[:-1])

    def unpooled(self, x: Tensor) -> Tensor:
        """Return the features before pooling: maps or tokens."""
        return self.body.forward_features(files.normalised(x, self.mean, self.std))  # type: ignore[operator, no-any-return]

    def maps(self, x: Tensor) -> Tensor:
        """Return the last feature maps, if the network provides them."""
        return self.unpooled(x)

    def pooled(self, maps: Tensor) -> Tensor:
        """Return the features that the head receives, given the maps."""
        return self.body.forward_head(maps)  # type: ignore[operator, no-any-return]

    def features(self, x: Tensor) -> Tensor:
        """Return the features that the head receives."""
        return self.pooled(self.unpooled(x))


class Torchvision(Classifier):
    """A torchvision network without its last layer, and a linear head; its pooling layer is not known."""

    attentive = False
    provides = frozenset({"features"})

    @property
    def cuts(self) -> tuple[str, ...]:
        """Names of its blocks except the last, where torchvision's networks have them; empty if they are not found."""
        for path in ("features", "encoder.layers"):
            names = [name for name, _ in self.named_modules() if re.fullmatch(rf"body\.{path}\.\w+", name)]
            if names:
                return tuple(names[:-1])
        return tuple(name for name, _ in self.named_modules() if re.fullmatch(r"body\.(layer|stage)[1-3]", name))

    def features(self, x: Tensor) -> Tensor:
        """Return the features that the head receives."""
        return self.body(files.normalised(x))  # type: ignore[no-any-return]


def timm(preset: str, weights: files.Weights = "") -> Callable[[Task], Classifier]:
    """Build a timm network, e.g. timm:convnext_tiny."""
    return partial(_timm, _require_name("timm", preset, "convnext_tiny"), weights)


def torchvision(preset: str, weights: files.Weights = "") -> Callable[[Task], Classifier]:
    """Build a torchvision classifier, e.g. torchvision:efficientnet_b0."""
    return partial(_torchvision, _require_name("torchvision", preset, "efficientnet_b0"), weights)


def _timm(name: str, file: str, task: Task) -> Classifier:
    package, full = _package("timm"), f"timm:{name}"
    files.require_colours(task, full)
    body = _create(full, lambda: package.create_model(name, pretrained=False, num_classes=0))
    net = Timm(body, len(task.classes))
    features = _test(net, net.unpooled, task, full, body.pretrained_cfg.get("input_size", (3, 224, 224))[-1])
    if features.ndim == 4 and features.shape[1] == body.num_features:
        net.provides = frozenset({"features", "maps", "pooled"})
    return files.load(net, file, head=body.pretrained_cfg["classifier"]) if file else net


def _torchvision(name: str, file: str, task: Task) -> Classifier:
    package, full = _package("torchvision"), f"torchvision:{name}"
    files.require_colours(task, full)
    body = _create(full, lambda: package.models.get_model(name, weights=None))
    linear = [path for path, layer in body.named_modules() if isinstance(layer, nn.Linear)]
    if not linear or getattr(body, "aux_logits", False):
        reason = "has more than one output" if linear else "does not end in a linear layer"
        raise ConfigError(f"{full} {reason}, so it cannot be split into features and head; use another network")
    head = linear[-1]
    width = body.get_submodule(head).in_features
    body.set_submodule(head, nn.Identity())
    net = Torchvision(body, width, len(task.classes))
    features = _test(net, net.features, task, full, 224)
    if features.shape != (1, width):
        raise ConfigError(
            f"{full} returns {tuple(features.shape)} where (1, {width}) was expected; use another network"
        )
    return files.load(net, file, head=head) if file else net


def _require_name(package: str, preset: str, example: str) -> str:
    if preset == "default":
        raise ConfigError(f"{package} needs the name of a network, for example {package}:{example}")
    return preset


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(
            f"networks of {name} need the package {name}, which is not installed; run: pip install 'fedbeyond[{name}]'"
        ) from None
    except RuntimeError as error:  # torchvision was built for another version of torch
        raise ConfigError(
            f"{name} cannot be imported with this version of torch ({error}); install a matching build"
        ) from None


def _create(full: str, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except (RuntimeError, ValueError, TypeError) as error:
        package, _, name = full.partition(":")
        raise ConfigError(f"{package} cannot create a network {name!r} ({error}); use another of its names") from None


@torch.no_grad()
def _test(net: Classifier, forward: Callable[[Tensor], Tensor], task: Task, full: str, usual: int) -> Tensor:
    """Return the features of one black image of the task's size; raise `ConfigError` if the network rejects it."""
    net.eval()
    image = torch.full((1, *task.shape), -1.0, device=net.head.weight.device)
    try:
        return forward(image)
    except (AssertionError, RuntimeError, ValueError) as error:
        given = " x ".join(map(str, task.shape))
        raise ConfigError(
            f"{full} cannot take images of {given} ({error}); set another size of the dataset, e.g. size={usual}"
        ) from None
    finally:
        net.train()
