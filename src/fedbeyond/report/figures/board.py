"""A grid of images with short texts under them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..figure import INK, SOFT, Picture, panels

LIGHT, DARK = "#fdfdfe", "#101216"  # for text on a picture's own colours, which a dark page does not change
SMALLEST, LARGEST = 96, 160  # limits of the shown size of an image, in pixels


class Tile(NamedTuple):
    """An image, as bytes in rows of pixels, and the text under it."""

    pixels: np.ndarray
    text: str = ""
    colour: str = SOFT


def board(rows: Sequence[Sequence[Tile]], top: Sequence[str], left: Sequence[str], side: float = 0.95) -> Picture:
    """Draw tiles in rows, with names over the columns and before the rows."""
    has_text = any(tile.text for row in rows for tile in row)
    step, across = (1.3 if has_text else 1.08), 1.08
    margin, head = 0.11 * max(map(len, left)), 0.35
    width, height = margin + across * len(top), head + step * len(rows)
    picture, (axis,) = panels(1, width=side * width, height=side * height)
    for row, (name, tiles) in enumerate(zip(left, rows, strict=True)):
        axis.text(-0.12, row * step + 0.5, name, ha="right", va="center", color=INK)
        for column, tile in enumerate(tiles):
            x, y = column * across, row * step
            axis.imshow(tile.pixels, extent=(x, x + 1, y + 1, y), interpolation="none")
            if tile.text:
                axis.text(x + 0.5, y + 1.04, tile.text, ha="center", va="top", color=tile.colour, fontsize=7)
    for column, name in enumerate(top):
        axis.text(column * across + 0.5, -0.12, name, ha="center", va="bottom", color=INK)
    axis.set(xlim=(-margin, across * len(top)), ylim=(step * len(rows), -head), aspect="equal")
    axis.axis("off")
    return picture


def displayed(x: Tensor) -> Tensor:
    """Convert an image between -1 and 1 to three channels between 0 and 1, resized for display."""
    x = ((x.float().cpu() + 1) / 2).clamp(0, 1).expand(3, -1, -1)
    longest = max(x.shape[1:])
    if longest > LARGEST:
        size = [round(side * LARGEST / longest) for side in x.shape[1:]]
        return F.interpolate(x[None], size, mode="bilinear", antialias=True)[0]
    times = -(-SMALLEST // longest)
    return x.repeat_interleave(times, 1).repeat_interleave(times, 2)


def as_bytes(x: Tensor) -> np.ndarray:
    """Convert three channels between 0 and 1 to rows of pixels."""
    rows: np.ndarray = (x * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    return rows
