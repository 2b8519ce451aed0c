"""AugMix: A Simple Data Processing Method to Improve Robustness and Uncertainty.

Hendrycks, Mu, Cubuk, Zoph, Gilmer, Lakshminarayanan; ICLR 2020; https://arxiv.org/abs/1912.02781

Several chains of simple operations (rotate, shear, posterize, ...) are applied to an image; the results are blended
with each other and with the image. With any method: each batch gets such views, which every loss treats as further
images.
"""

from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveInt

from ..data.augment import style
from ..data.augment.augmix import aug_mix
from ..method import Method, augmented

PRESETS = {"paper": {"views": 2}}


def augmix(
    method: Method,
    views: NonNegativeInt = 1,
    width: PositiveInt = 3,
    depth: PositiveInt | None = None,
    severity: Annotated[float, Field(ge=0.1, le=10)] = 3.0,
) -> Method:
    """Add `views` AugMix views of each image to a batch (views=0: replace the images)."""
    paint = aug_mix(width, depth, severity)
    return augmented(method, "augmix", style.views(paint, views) if views else style.repaint(paint))
