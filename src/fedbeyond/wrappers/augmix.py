"""AugMix: A Simple Data Processing Method to Improve Robustness and Uncertainty.

Hendrycks, Mu, Cubuk, Zoph, Gilmer, Lakshminarayanan; ICLR 2020; https://arxiv.org/abs/1912.02781

Several chains of simple operations (rotate, shear, posterize, ...) are applied to an image; the results are blended
with each other and with the image. With any method: each batch gets such views, which every loss treats as further
images.
"""

from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveInt

from .._method import Method, augmented
from ..data.augment import style
from ..data.augment.augmix import aug_mix

PRESETS = {"paper": {"views": 2}}


def augmix(
    method: Method,
    views: Annotated[NonNegativeInt, "views added for each image; 0: a view replaces the image"] = 1,
    width: Annotated[PositiveInt, "chains of operations that are blended"] = 3,
    depth: Annotated[PositiveInt | None, "operations in a chain; none: one to three, drawn"] = None,
    severity: Annotated[float, Field(ge=0.1, le=10), "largest magnitude of operations, in tenths"] = 3.0,
) -> Method:
    """Add `views` AugMix views of each image to a batch."""
    paint = aug_mix(width, depth, severity)
    return augmented(method, "augmix", style.views(paint, views) if views else style.repaint(paint))
