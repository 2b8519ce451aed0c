"""Change brightness, contrast, saturation and hue of a batch of images, as image libraries define them.

Images are in 0..1, except in `greyed`, which takes any range. An amount is given for each image.
"""

import torch
from torch import Tensor

LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue in luma (ITU-R BT.601)


def grey(x: Tensor) -> Tensor:
    """Compute the luma of each pixel: one channel."""
    if x.shape[1] != 3:
        return x.mean(1, keepdim=True)
    return (x * x.new_tensor(LUMA).view(1, 3, 1, 1)).sum(1, keepdim=True)


def greyed(x: Tensor) -> Tensor:
    """Return the images in grey."""
    return grey(x).expand_as(x)


def brighten(x: Tensor, factor: Tensor) -> Tensor:
    """Blend with black: factor 0 is black, 1 the image."""
    return (factor * x).clamp(0, 1)


def contrast(x: Tensor, factor: Tensor) -> Tensor:
    """Blend with the mean luma of each image: factor 0 is constant, 1 the image."""
    middle = grey(x).mean((1, 2, 3), keepdim=True)
    return torch.lerp(middle.expand_as(x), x, factor).clamp(0, 1)


def saturate(x: Tensor, factor: Tensor) -> Tensor:
    """Blend with the grey image: factor 0 is grey, 1 the image."""
    return torch.lerp(greyed(x), x, factor).clamp(0, 1)


def turn(x: Tensor, by: Tensor) -> Tensor:
    """Rotate hues by a share of the circle; images without three channels are unchanged."""
    if x.shape[1] != 3:
        return x
    hue, saturation, value = hsv(x)
    return rgb(around(hue + by[:, 0]), saturation, value)


def around(hue: Tensor) -> Tensor:
    """Wrap a hue into 0..1 (`%` does the same, several times slower)."""
    return hue - hue.floor()


def hsv(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return hue (a share of the circle), saturation and value, each without the channel axis."""
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
    """Invert `hsv`: each channel depends on the distance of the hue from red, green or blue on the circle."""
    channels = [6 * around(hue + shift / 6) for shift in (5, 3, 1)]
    parts = [value - value * saturation * torch.minimum(k, 4 - k).clamp(0, 1) for k in channels]
    return torch.stack(parts, 1)
