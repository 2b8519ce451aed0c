"""Re-estimate the running statistics of BatchNorm layers from a batch of images, without training."""

from typing import Any

import torch
from torch import Tensor, nn

from ..classifier import norms


@torch.no_grad()
def refresh(net: nn.Module, x: Tensor) -> None:
    """Set the running statistics of every BatchNorm layer to the moments of the batch `x`, in one forward pass.

    A layer normalises with the moments just measured, so that later layers see updated inputs. The network is left in
    evaluation mode. Layers that do not track statistics, or that are frozen, keep theirs; with no other layers there
    is no forward pass.
    """
    net.eval()
    layers = [layer for _, layer in norms(net) if tracks(layer)]
    hooks = [layer.register_forward_pre_hook(_measure) for layer in layers]
    try:
        if layers:
            net(x)
    finally:
        for hook in hooks:
            hook.remove()


def tracks(layer: nn.modules.batchnorm._BatchNorm) -> bool:
    """Whether a layer has running statistics that may change."""
    return layer.running_mean is not None and not getattr(layer, "frozen", False)


def moments(given: Tensor) -> dict[str, Tensor]:
    """Measure the mean and the standard deviation (biased) of every channel of a layer's input."""
    variance, mean = torch.var_mean(given.float(), [0, *range(2, given.dim())], correction=0)
    return {"mean": mean, "deviation": variance.sqrt()}


def set_statistics(layer: nn.modules.batchnorm._BatchNorm, mean: Tensor, variance: Tensor) -> None:
    """Give a layer other running statistics."""
    assert layer.running_mean is not None and layer.running_var is not None
    layer.running_mean.copy_(mean)
    layer.running_var.copy_(variance)


def _measure(layer: nn.Module, given: tuple[Any, ...]) -> None:
    """Take the moments of a layer's input as its running statistics."""
    assert isinstance(layer, nn.modules.batchnorm._BatchNorm)
    found = moments(given[0])
    set_statistics(layer, found["mean"], found["deviation"].square())
