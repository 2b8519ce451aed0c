"""Robust and Generalizable Visual Representation Learning via Random Convolutions.

Xu, Liu, Yang, Raffel, Niethammer; ICLR 2021; https://arxiv.org/abs/2007.13003

A convolution with random weights changes colours and textures but not shapes, so a network that learns from both
versions must rely on shapes. With any method: each batch gets such views, which every loss treats as further images.
"""

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from .._method import Method, Share, augmented
from ..data.augment import style

PRESETS = {
    "img": {"views": 0, "mix": False, "keep": 0.5},  # RC_img1-7, p = 0.5
    "mix": {"views": 0},  # RC_mix1-7
}

Sizes = Annotated[Sequence[PositiveInt], "sizes of kernels, one of which is drawn; odd numbers"]
Mix = Annotated[bool, "blend the convolved image with the image, by a random share"]


def rc(
    method: Method,
    views: Annotated[NonNegativeInt, "views added for each image; 0: a view replaces the image"] = 1,
    sizes: Sizes = (1, 3, 5, 7),
    mix: Mix = True,
    keep: Annotated[Share, "probability that a batch is not changed"] = 0.0,
) -> Method:
    """Add `views` randomly convolved views of each image to a batch."""
    paint = random_convolution(sizes, mix, keep)
    return augmented(method, "rc", style.views(paint, views) if views else style.repaint(paint))


def random_convolution(sizes: Sizes, mix: bool, keep: float) -> style.Paint:
    """Return a function that convolves a batch with a random kernel, or with probability `keep` does not change it."""
    even = [size for size in sizes if size % 2 == 0]
    if even or not sizes:
        raise ValueError(f"sizes={list(sizes)} is not valid: kernels have odd sizes, as in sizes=[1, 3, 5, 7]")
    paint = style.rand_conv(sizes, mix=mix)

    def convolve_or_keep(x: Tensor, rng: torch.Generator) -> Tensor:
        return x if float(torch.rand((), generator=rng)) < keep else paint(x, rng)

    return convolve_or_keep if keep else paint
