"""Set the running statistics of BatchNorm layers from one batch of a single site, without training."""

from typing import Any

import torch
from torch import Tensor, nn

from ..classifier import attached, batchnorm_layers


@torch.no_grad()
def refresh(net: nn.Module, x: Tensor) -> None:
    """Set the running statistics of every BatchNorm layer to the moments of the batch `x`, in one forward pass.

    A layer normalises with the moments just measured, so that later layers get updated inputs. The network stays in
    evaluation mode. Layers that do not track statistics, or that are frozen, do not change; if there are no others,
    there is no forward pass.
    """
    net.eval()
    layers = [layer for _, layer in batchnorm_layers(net) if tracks(layer)]
    if layers:
        with attached(layer.register_forward_pre_hook(_measure) for layer in layers):
            net(x)


def tracks(layer: nn.modules.batchnorm._BatchNorm) -> bool:
    """Return whether a layer has running statistics that may change."""
    return layer.running_mean is not None and not getattr(layer, "frozen", False)


def moments(given: Tensor) -> dict[str, Tensor]:
    """Measure the mean and the standard deviation (biased) of every channel of a layer's input."""
    variance, mean = torch.var_mean(given.float(), [0, *range(2, given.dim())], correction=0)
    return {"mean": mean, "deviation": variance.sqrt()}


def set_statistics(layer: nn.modules.batchnorm._BatchNorm, mean: Tensor, variance: Tensor) -> None:
    """Replace the running statistics of a layer."""
    assert layer.running_mean is not None and layer.running_var is not None
    layer.running_mean.copy_(mean)
    layer.running_var.copy_(variance)


def _measure(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Set a layer's running statistics to the moments of its input."""
    assert isinstance(layer, nn.modules.batchnorm._BatchNorm)
    measured = moments(inputs[0])
    set_statistics(layer, measured["mean"], measured["deviation"].square())
