"""Data by domain: images and labels of each, over one list of classes; read from a folder of folders."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import torch
from pydantic import Field

from ..errors import DataError
from ..progress import track
from .site import Split

ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}


class Domains(NamedTuple):
    """What a dataset is: its classes, and the images (uint8, N x C x H x W) and labels of each domain.

    Of tables, rows of features stand for images, and `complete` fills in what is missing in a split of a site, given
    the site's training split.
    """

    classes: tuple[str, ...]
    images: dict[str, Split]
    complete: Callable[[Split, Split], Split] | None = None


def folder(
    root: str = "", size: Annotated[int, Field(gt=0)] = 32, classes: tuple[str, ...] = (), partial: bool = False
) -> Domains:
    """Any folder of `domain/class/image`, resized to `size` pixels square.

    `classes` limits what is read; `partial` allows domains that lack some class.
    """
    if not root:
        raise DataError("folder needs the path of the data: folder(root=/data/pacs), laid out domain/class/image")
    top = Path(root).expanduser()
    if not top.is_dir():
        raise DataError(f"{root}: no such folder; give a folder laid out domain/class/image")
    domains = [path for path in sorted(top.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    files = {domain.name: listing(domain) for domain in domains}
    wanted = tuple(classes) or tuple(sorted({name for found in files.values() for name in found}))
    for domain, found in files.items():
        lacking = [name for name in wanted if not found.get(name)]
        if len(lacking) == len(wanted):
            raise DataError(f"{top / domain}: no images; expected {domain}/class/image with {', '.join(ENDINGS)}")
        if lacking and not partial:
            raise DataError(
                f"{top / domain}: no image of class {', '.join(lacking)}, which other domains have; "
                f"add some, leave the class out with classes=[...], or allow it with partial=true"
            )
    images = {domain: read(found, wanted, size, domain) for domain, found in files.items()}
    return Domains(wanted, images)


def listing(domain: Path) -> dict[str, list[Path]]:
    """The images of a domain by the folder of their class."""
    return {
        path.name: sorted(file for file in path.rglob("*") if file.suffix.lower() in ENDINGS)
        for path in sorted(domain.iterdir())
        if path.is_dir() and not path.name.startswith(".")
    }


def read(files: dict[str, list[Path]], classes: tuple[str, ...], size: int, domain: str) -> Split:
    """Listed images, resized to `size` pixels square, and their labels: places in `classes`."""
    from PIL import Image

    listed = [(path, label) for label, name in enumerate(classes) for path in files.get(name, [])]
    pixels = np.empty((len(listed), 3, size, size), np.uint8)
    for place, (path, _) in enumerate(track(listed, f"reading {domain}")):
        try:
            with Image.open(path) as image:
                small = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: cannot be read as an image ({error}); remove or replace it") from None
        pixels[place] = np.asarray(small).transpose(2, 0, 1)
    return torch.from_numpy(pixels), torch.tensor([label for _, label in listed])
