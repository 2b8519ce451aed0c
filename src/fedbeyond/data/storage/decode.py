"""Image files and arrays as bytes of one size: RGB, resized to a square, bilinear."""

import struct
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from ...errors import DataError
from .listing import Files

if TYPE_CHECKING:
    from PIL import Image

VERSION = 1  # of what is computed here: another number makes all be decoded anew
DEEP = ("I", "F")  # PIL's modes of 16 and 32 bits, which its conversion to RGB cuts off at 255


def decoded(pixels: Files | np.ndarray, row: int, size: int) -> np.ndarray:
    """One image as bytes, 3 x size x size."""
    from PIL import Image

    image = part(pixels, row) if isinstance(pixels, Files) else Image.fromarray(pixels[row]).convert("RGB")
    small = image.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(small).transpose(2, 0, 1)


def part(files: Files, row: int) -> "Image.Image":
    """An image file, or the part of it that is meant."""
    path = files.root / files.names[row]
    return opened(path).crop(files.boxes[row]) if files.boxes else opened.__wrapped__(path)


@lru_cache(maxsize=1)  # several parts of one large file follow each other
def opened(path: Path) -> "Image.Image":
    """A whole image file in RGB, the file closed again."""
    try:
        return rgb(path)
    except ValueError as error:
        raise DataError(f"{path}: cannot be read as an image ({error}); remove or replace it") from None


def rgb(file: Path | IO[bytes]) -> "Image.Image":
    """An image file decoded to its end, in RGB; what is wrong with it is a ValueError of a few words."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            if image.mode.startswith(DEEP):
                raise ValueError("more than 8 bits a pixel, which would all become white; write it with 8 bits")
            return image.convert("RGB")
    except UnidentifiedImageError:
        raise ValueError("no image") from None
    except (OSError, ValueError, SyntaxError, EOFError, struct.error, Image.DecompressionBombError) as error:
        raise ValueError("truncated" if "truncated" in str(error).lower() else str(error)) from None
