"""How good a model is: metrics of a network on a split."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .data.images import Split

AT_ONCE = 512  # images in one evaluation step


def pixels(x: Tensor) -> Tensor:
    """Bytes 0..255 as floats -1..1; floats are taken to be ready."""
    return x.float().div_(127.5).sub_(1) if x.dtype == torch.uint8 else x


@torch.no_grad()
def measure(net: nn.Module, split: Split) -> dict[str, Tensor]:
    """Mean cross-entropy and the share of right answers, as scalars."""
    images, labels = split
    device = next(net.parameters()).device
    net.eval()
    loss = torch.zeros((), dtype=torch.float64)
    right = 0
    for x, y in zip(images.split(AT_ONCE), labels.split(AT_ONCE), strict=True):
        scores, truth = net(pixels(x.to(device))), y.to(device)
        loss += F.cross_entropy(scores, truth, reduction="sum").cpu()
        right += int((scores.argmax(1) == truth).sum())
    return {"loss": (loss / len(labels)).float(), "accuracy": torch.tensor(right / len(labels))}
