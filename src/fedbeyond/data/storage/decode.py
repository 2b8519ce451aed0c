"""Decode image files and arrays to RGB bytes of one size: resized to a square, bilinear."""

import struct
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from ...errors import DataError
from .listing import Files

if TYPE_CHECKING:
    from PIL import Image

VERSION = 1  # of the decoding below: a new number makes all images be decoded again
DEEP = ("I", "F")  # PIL modes of 16 and 32 bits; PIL's conversion to RGB clips them at 255


def decoded(pixels: Files | np.ndarray, row: int, size: int) -> np.ndarray:
    """Return one image, or the part of it inside its crop box, as bytes, 3 x size x size."""
    from PIL import Image

    if isinstance(pixels, Files):
        path = pixels.root / pixels.names[row]
        image = opened(path).crop(pixels.boxes[row]) if pixels.boxes else opened.__wrapped__(path)
    else:
        image = Image.fromarray(pixels[row]).convert("RGB")
    resized = image.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(resized).transpose(2, 0, 1)


@lru_cache(maxsize=1)  # consecutive rows are often crops of one large file
def opened(path: Path) -> "Image.Image":
    """Open an image file and return all of it in RGB; the file is closed."""
    try:
        return rgb(path)
    except ValueError as error:
        raise DataError(f"{path}: cannot be read as an image ({error}); remove or replace it") from None


def rgb(file: Path | IO[bytes]) -> "Image.Image":
    """Decode a whole image file to RGB; raise a ValueError with a short reason if that fails."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            if image.mode.startswith(DEEP):
                raise ValueError("more than 8 bits a pixel, which PIL would turn white; write it with 8 bits")
            return image.convert("RGB")
    except UnidentifiedImageError:
        raise ValueError("not an image") from None
    except (OSError, ValueError, SyntaxError, EOFError, struct.error, Image.DecompressionBombError) as error:
        raise ValueError("truncated" if "truncated" in str(error).lower() else str(error)) from None
