"""Data by domain: images and labels of each, over one list of classes; read from a folder of folders."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np
import torch
from pydantic import Field

from ..errors import DataError
from ..progress import track
from .listing import Files, Listing, Records
from .site import Split

if TYPE_CHECKING:
    from PIL.Image import Image

ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}


class Domains(NamedTuple):
    """What a dataset is: its classes, and the images (uint8, N x C x H x W) and labels of each domain."""

    classes: tuple[str, ...]
    images: dict[str, Split]


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
    return decoded(own(top, tuple(classes), partial), size)


def own(top: Path, classes: tuple[str, ...] = (), partial: bool = False) -> Listing:
    """What a folder of `domain/class/image` holds, under the names that its folders have."""
    domains = [path for path in sorted(top.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    files = {domain.name: by_class(domain) for domain in domains}
    wanted = classes or tuple(sorted({name for found in files.values() for name in found}))
    records = {}
    for domain, found in files.items():
        lacking = [name for name in wanted if not found.get(name)]
        if len(lacking) == len(wanted):
            raise DataError(f"{top / domain}: no images; expected {domain}/class/image with {', '.join(ENDINGS)}")
        if lacking and not partial:
            raise DataError(
                f"{top / domain}: no image of class {', '.join(lacking)}, which other domains have; "
                f"add some, leave the class out with classes=[...], or allow it with partial=true"
            )
        listed = [(path, label) for label, name in enumerate(wanted) for path in found.get(name, [])]
        names = tuple(path.relative_to(top).as_posix() for path, _ in listed)
        records[domain] = Records(Files(top, names), np.array([label for _, label in listed], np.int64))
    return Listing(wanted, records, "a folder of one's own: domain/class/image")


def by_class(domain: Path) -> dict[str, list[Path]]:
    """The images of a domain by the folder of their class."""
    return {
        path.name: sorted(file for file in path.rglob("*") if file.suffix.lower() in ENDINGS)
        for path in sorted(domain.iterdir())
        if path.is_dir() and not path.name.startswith(".")
    }


def decoded(listing: Listing, size: int) -> Domains:
    """The images of a listing in memory, resized to `size` pixels square."""
    images = {domain: read(records, size, domain) for domain, records in listing.domains.items()}
    return Domains(listing.classes, images)


def read(records: Records, size: int, domain: str) -> Split:
    """The images of one domain, resized, and their labels."""
    from PIL.Image import Resampling

    pixels = np.empty((len(records.labels), 3, size, size), np.uint8)
    with_progress = track(range(len(pixels)), f"reading {domain}")
    for place, image in zip(with_progress, opened(records), strict=True):
        small = image.convert("RGB").resize((size, size), Resampling.BILINEAR)
        pixels[place] = np.asarray(small).transpose(2, 0, 1)
    return torch.from_numpy(pixels), torch.from_numpy(records.labels.astype(np.int64))


def opened(records: Records) -> Iterator["Image"]:
    """Each image in turn, whole or the part that is meant of it."""
    from PIL import Image

    if isinstance(records.pixels, np.ndarray):
        yield from map(Image.fromarray, records.pixels)
        return
    root, names, boxes = records.pixels
    last = ""  # boxes of one large image follow one another: it is opened once
    for place, name in enumerate(names):
        if name != last or not boxes:
            image, last = _open(root / name), name
        yield image.crop(boxes[place]) if boxes else image


def _open(path: Path) -> "Image":
    from PIL import Image

    try:
        with Image.open(path) as image:
            image.load()
            return image
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as an image ({error}); remove or replace it") from None
