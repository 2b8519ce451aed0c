"""AugMix: A Simple Data Processing Method to Improve Robustness and Uncertainty.

Hendrycks, Mu, Cubuk, Zoph, Gilmer, Lakshminarayanan; ICLR 2020; https://arxiv.org/abs/1912.02781

Several chains of plain operations on an image (turned, sheared, fewer levels, ...) are blended with each other and with
the image. Over any method: each batch gets such a view beside it, and counts with it in every loss.
"""

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from ..batch import chain
from ..classifier import for_images
from ..data.augment import style
from ..data.augment.augmix import aug_mix
from ..method import Method

PRESETS = {"paper": {"views": 2}}


def augmix(
    method: Method,
    views: Annotated[int, Field(ge=0)] = 1,
    width: Annotated[int, Field(gt=0)] = 3,
    depth: Annotated[int, Field(gt=0)] | None = None,
    severity: Annotated[float, Field(ge=0.1, le=10)] = 3.0,
) -> Method:
    """Views by chains of operations beside each image (views=0: in its place), on top of any method."""
    paint = aug_mix(width, depth, severity)
    own = style.views(paint, views) if views else style.repaint(paint)
    return replace(method, augment=chain(method.augment, own), networks=for_images("augmix", method.networks))
