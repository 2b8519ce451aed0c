"""Robust and Generalizable Visual Representation Learning via Random Convolutions.

Xu, Liu, Yang, Raffel, Niethammer; ICLR 2021; https://arxiv.org/abs/2007.13003

A convolution with random weights changes colours and textures and leaves shapes; a network that sees images both
ways must go by shapes. Over any method: each batch gets such a view beside it, and counts with it in every loss.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from ..data import augment
from ..method import Method
from ..nets import for_images


def rc(
    method: Method,
    views: Annotated[int, Field(ge=0)] = 1,
    sizes: Sequence[Annotated[int, Field(gt=0)]] = (1, 3, 5, 7),
    mix: bool = True,
) -> Method:
    """Views by random convolutions beside each image (views=0: in its place), on top of any method."""
    even = [size for size in sizes if size % 2 == 0]
    if even or not sizes:
        raise ValueError(f"sizes={list(sizes)} does not fit: kernels have odd sizes, as in sizes=[1, 3, 5, 7]")
    paint = augment.rand_conv(sizes, mix=mix)
    own = augment.views(paint, views) if views else augment.repaint(paint)
    networks = for_images("rc", method.networks)
    return replace(method, augment=augment.chain(method.augment, own), networks=networks)
