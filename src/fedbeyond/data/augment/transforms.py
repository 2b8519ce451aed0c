"""Transforms of training images (crops, flips, colours), and the choices of official codes by name.

All images of a batch are transformed at once, on their device. Random values are drawn for each image from the site's
random stream. Images are floats in -1..1 and keep their size: where an official code crops to 224 pixels, we crop to
the size of the data.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from ...batch import Augment, chain, plain
from .colours import brighten, contrast, greyed, saturate, turn
from .style import Paint, repaint

Share = Annotated[float, Field(ge=0, le=1)]
Part = Annotated[float, Field(gt=0, le=1)]

ATTEMPTS = 10  # crops drawn for an image; the first that fits is used
RATIOS = (3 / 4, 4 / 3)  # of width to height of a crop


def custom(
    zoom: Annotated[Part, "share of each side that the middle part has, which is enlarged"] = 1.0,
    crop: Annotated[Sequence[Part] | None, "smallest and largest share of a random crop's area; none: no crop"] = None,
    pad: Annotated[int, Field(ge=0), "largest random shift in pixels"] = 0,
    flip: Annotated[Share, "probability of mirroring left to right"] = 0.0,
    jitter: Annotated[
        Sequence[Annotated[float, Field(ge=0)]],
        "largest change of brightness, contrast, saturation and hue (hue: at most 0.5)",
    ] = (0.0, 0.0, 0.0, 0.0),
    grey: Annotated[Share, "probability of removing the colours"] = 0.0,
) -> Augment:
    """Combine centre `zoom`, random `crop`, shift by `pad`, `flip`, colour `jitter` and `grey` of your choice."""
    if crop is not None and (len(crop) != 2 or crop[0] > crop[1]):
        raise ValueError(f"crop={list(crop)} is not valid: give two shares of the area, as in crop=[0.7, 1.0]")
    if len(jitter) != 4 or jitter[3] > 0.5:
        raise ValueError(
            f"jitter={list(jitter)} is not valid: give four numbers, the last at most 0.5, as in [0.4, 0.4, 0.4, 0.1]"
        )
    paints = [
        centre(zoom) if zoom < 1 else None,
        resized_crop(crop[0], crop[1]) if crop else None,
        padded_crop(pad) if pad else None,
        sometimes(mirrored, flip) if flip else None,
        colour_jitter(*jitter) if any(jitter) else None,
        sometimes(greyed, grey) if grey else None,
    ]
    steps: list[Augment] = [repaint(paint) for paint in paints if paint]
    return reduce(chain, steps) if steps else plain


def none() -> Augment:
    """Leave images unchanged."""
    return plain


def ga() -> Augment:
    """Transform as GA's code: crops of 0.7 to 1, flips, jitter of 0.4, some grey."""
    return custom(crop=(0.7, 1.0), flip=0.5, jitter=(0.4, 0.4, 0.4, 0.4), grey=0.1)


def domainbed() -> Augment:
    """Transform as DomainBed, FedIIR and FedSR: crops of 0.7 to 1, flips, jitter of 0.3, some grey."""
    return custom(crop=(0.7, 1.0), flip=0.5, jitter=(0.3, 0.3, 0.3, 0.3), grey=0.1)


def fedsb() -> Augment:
    """Transform as FedSB's code: the middle 224 of 232 pixels, flips, jitter of 0.3, some grey."""
    return custom(zoom=224 / 232, flip=0.5, jitter=(0.3, 0.3, 0.3, 0.3), grey=0.1)


def fedadg() -> Augment:
    """Transform as FedADG's code: crops of 0.7 to 1, flips, some grey."""
    return custom(crop=(0.7, 1.0), flip=0.5, grey=0.1)


def rsc() -> Augment:
    """Transform as RSC's and JiGen's code: crops of 0.8 to 1, flips, jitter of 0.4, some grey."""
    return custom(crop=(0.8, 1.0), flip=0.5, jitter=(0.4, 0.4, 0.4, 0.4), grey=0.1)


def fact() -> Augment:
    """Transform as FACT's code: crops of 0.8 to 1, flips, jitter of 0.4."""
    return custom(crop=(0.8, 1.0), flip=0.5, jitter=(0.4, 0.4, 0.4, 0.4))


def ccst() -> Augment:
    """Transform as CCST's code: crops of 0.8 to 1, flips."""
    return custom(crop=(0.8, 1.0), flip=0.5)


def digits() -> Augment:
    """Transform as MarsFL's code for digits: shifts by up to 4 pixels."""
    return custom(pad=4)


def centre(zoom: float) -> Paint:
    """Enlarge the middle part of each image, `zoom` of each side."""

    def paint(x: Tensor, rng: torch.Generator) -> Tensor:
        return cut(x, torch.full((len(x), 2), zoom), torch.zeros(len(x), 2))

    return paint


def resized_crop(least: float, most: float) -> Paint:
    """Enlarge a random part of each image, of `least` to `most` of its area."""

    def paint(x: Tensor, rng: torch.Generator) -> Tensor:
        sizes, centres = draw_crops(len(x), x.shape[2] / x.shape[3], least, most, rng)
        return cut(x, sizes, centres)

    return paint


def draw_crops(count: int, tall: float, least: float, most: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw sizes (width and height, as shares of the image's) and centres (in -1..1) of random crops.

    `tall` is the image's height over its width. If no attempt fits, the whole image is used.
    """
    area = least + (most - least) * torch.rand(count, ATTEMPTS, generator=rng)
    low, high = (torch.tensor(ratio).log() for ratio in RATIOS)
    ratio = (low + (high - low) * torch.rand(count, ATTEMPTS, generator=rng)).exp() * tall
    if least == most == 1:  # the whole image, whatever its shape
        ratio = torch.ones_like(ratio)
    sizes = torch.stack(((area * ratio).sqrt(), (area / ratio).sqrt()), 2)
    fits = (sizes <= 1).all(2)
    first = fits.int().argmax(1)
    size = torch.where(fits.any(1)[:, None], sizes[torch.arange(count), first], 1.0)
    return size, (1 - size) * (2 * torch.rand(count, 2, generator=rng) - 1)


def cut(x: Tensor, sizes: Tensor, centres: Tensor) -> Tensor:
    """Crop images and enlarge the crops to full size; `sizes` and `centres` are as in `draw_crops`."""
    theta = torch.cat((torch.diag_embed(sizes), centres[:, :, None]), 2).to(x)
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


def padded_crop(pad: int) -> Paint:
    """Shift images by up to `pad` pixels each way; fill with black."""

    def paint(x: Tensor, rng: torch.Generator) -> Tensor:
        count, channels, height, width = x.shape
        shift = torch.randint(2 * pad + 1, (2, count), generator=rng).to(x.device)
        rows = (shift[0][:, None] + torch.arange(height, device=x.device))[:, None, :, None]
        columns = (shift[1][:, None] + torch.arange(width, device=x.device))[:, None, None, :]
        every = torch.arange(count, device=x.device)[:, None, None, None]
        colour = torch.arange(channels, device=x.device)[None, :, None, None]
        return F.pad(x, (pad,) * 4, value=-1.0)[every, colour, rows, columns]

    return paint


def sometimes(change: Callable[[Tensor], Tensor], chance: float) -> Paint:
    """Change each image with probability `chance`."""

    def paint(x: Tensor, rng: torch.Generator) -> Tensor:
        chosen = torch.rand(len(x), 1, 1, 1, generator=rng) < chance
        return torch.where(chosen.to(x.device), change(x), x)

    return paint


def mirrored(x: Tensor) -> Tensor:
    """Mirror images left to right."""
    return x.flip(3)


def colour_jitter(brightness: float, contrasts: float, saturation: float, hue: float) -> Paint:
    """Change colours by random amounts, drawn for each image, in an order drawn for the batch."""
    spreads = (brightness, contrasts, saturation, hue)
    changes = (brighten, contrast, saturate, turn)

    def paint(x: Tensor, rng: torch.Generator) -> Tensor:
        draws = 2 * torch.rand(4, len(x), 1, 1, 1, generator=rng) - 1
        x = (x + 1) / 2
        for which in torch.randperm(4, generator=rng).tolist():
            if spreads[which]:
                amount = draws[which] * spreads[which]
                x = changes[which](x, (amount if which == 3 else (1 + amount).clamp(min=0)).to(x))
        return 2 * x - 1

    return paint
