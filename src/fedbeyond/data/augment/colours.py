"""Colours of images, a batch at a time: brightness, contrast, saturation and hue, as image libraries define them.

Images are between 0 and 1 here, but for `greyed`, for which any range will do; an amount is given for each image.
"""

import torch
from torch import Tensor

LUMA = (0.299, 0.587, 0.114)  # how bright red, green and blue seem (ITU-R BT.601)


def grey(x: Tensor) -> Tensor:
    """How bright each place seems: one channel."""
    if x.shape[1] != 3:
        return x.mean(1, keepdim=True)
    return (x * x.new_tensor(LUMA).view(1, 3, 1, 1)).sum(1, keepdim=True)


def greyed(x: Tensor) -> Tensor:
    """The same images without colours."""
    return grey(x).expand_as(x)


def brighten(x: Tensor, factor: Tensor) -> Tensor:
    """Blended with black: factor 0 is black, 1 the image."""
    return (factor * x).clamp(0, 1)


def contrast(x: Tensor, factor: Tensor) -> Tensor:
    """Blended with the mean brightness of each image: factor 0 is even, 1 the image."""
    middle = grey(x).mean((1, 2, 3), keepdim=True)
    return torch.lerp(middle.expand_as(x), x, factor).clamp(0, 1)


def saturate(x: Tensor, factor: Tensor) -> Tensor:
    """Blended with the grey image: factor 0 is grey, 1 the image."""
    return torch.lerp(greyed(x), x, factor).clamp(0, 1)


def turn(x: Tensor, by: Tensor) -> Tensor:
    """Hues turned by a share of the circle; images without colours stay."""
    if x.shape[1] != 3:
        return x
    hue, saturation, value = hsv(x)
    return rgb(around(hue + by[:, 0]), saturation, value)


def around(hue: Tensor) -> Tensor:
    """Where on the circle a hue is, between 0 and 1 (`%` would do the same, several times slower)."""
    return hue - hue.floor()


def hsv(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hue (a share of the circle), saturation and value, each without the channels' axis."""
    red, green, blue = x.unbind(1)
    most, least = x.amax(1), x.amin(1)
    spread = most - least
    safe = torch.where(spread == 0, torch.ones_like(spread), spread)
    hue = torch.where(
        most == red,
        (green - blue) / safe,
        torch.where(most == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    saturation = spread / torch.where(most == 0, torch.ones_like(most), most)
    return around(hue / 6), saturation, most


def rgb(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """The inverse of `hsv`: each channel by its distance on the circle of hues, from red, green and blue."""
    channels = [6 * around(hue + shift / 6) for shift in (5, 3, 1)]
    parts = [value - value * saturation * torch.minimum(k, 4 - k).clamp(0, 1) for k in channels]
    return torch.stack(parts, 1)
