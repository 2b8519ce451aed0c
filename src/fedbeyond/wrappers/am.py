"""A Fourier-based Framework for Domain Generalization.

Xu, Zhang, Zhang, Wang, Tian; CVPR 2021; https://arxiv.org/abs/2105.11120

Only the paper's amplitude mix, as Zhang et al. (CVPR 2023, see ga) use it for federated domain generalization.
The amplitudes of an image's spectrum carry its style, the phases its shapes. With any method: each image keeps its
phases, and its amplitudes are mixed with those of another image of the same site.
"""

from typing import Annotated

from .._method import Method, Share, augmented
from ..data.augment.style import amplitude_mix, repaint
from ..errors import ConfigError


def am(
    method: Method,
    strength: Annotated[Share, "upper bound of the other image's share, lambda"] = 1.0,
    chance: Annotated[Share, "probability that a batch is mixed"] = 0.5,
) -> Method:
    """Mix the amplitudes of the images within a batch."""
    if not method.amplitudes:
        raise ConfigError(
            "am mixes the amplitudes of images, but this method gives all images the same amplitudes: remove "
            "one of the two, or narrow the method's window, as in harmofl(window=0.5)+am"
        )
    return augmented(method, "am", repaint(amplitude_mix(strength, chance)))
