"""A Fourier-based Framework for Domain Generalization.

Xu, Zhang, Zhang, Wang, Tian; CVPR 2021; https://arxiv.org/abs/2105.11120

Its amplitude mix, as used for federated domain generalization by Zhang and others, CVPR 2023 (see ga).
Style lives in the amplitudes of an image's spectrum, shape in its phases. Over any method: images keep their phases
and take over part of the amplitudes of another image of the same site.
"""

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from ..batch import chain
from ..classifier import for_images
from ..data.augment.style import amplitude_mix, repaint
from ..errors import ConfigError
from ..method import Method

Share = Annotated[float, Field(ge=0, le=1)]


def am(method: Method, strength: Share = 1.0, chance: Share = 0.5) -> Method:
    """Images with amplitudes mixed among a site's own (a batch at a time, with some chance), on top of any method."""
    if not method.amplitudes:
        raise ConfigError(
            "am mixes the amplitudes of images, but this method gives all images the same: leave one out, "
            "or narrow its window, as in harmofl(window=0.5)+am"
        )
    mix = repaint(amplitude_mix(strength, chance))
    return replace(method, augment=chain(method.augment, mix), networks=for_images("am", method.networks))
