"""Any folder of `domain/class/image` as a dataset."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from ...errors import DataError
from ...images import Domains
from ..storage import decode
from ..storage.cache import load
from ..storage.listing import Files, Listing, Records
from .naming import subfolders

ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}


def folder(
    root: str = "", size: Annotated[int, Field(gt=0)] = 32, classes: tuple[str, ...] = (), partial: bool = False
) -> Domains:
    """Any folder of `domain/class/image`, resized to `size` pixels square.

    `classes` limits what is read; `partial` allows domains that lack some class.
    """
    return load(found(root, tuple(classes), partial), size)


def found(root: str, classes: tuple[str, ...] = (), partial: bool = False) -> Listing:
    """What lies in a folder of `domain/class/image`."""
    if not root:
        raise DataError("folder needs the path of the data: folder(root=/data/pacs), laid out domain/class/image")
    top = Path(root).expanduser()
    if not top.is_dir():
        raise DataError(f"{root}: no such folder; give a folder laid out domain/class/image")
    return own(top, classes, partial)


def own(top: Path, classes: tuple[str, ...] = (), partial: bool = False) -> Listing:
    """What a folder of `domain/class/image` holds, under the names that its folders have."""
    files = {domain.name: by_class(domain) for domain in subfolders(top)}
    wanted = classes or tuple(sorted({name for held in files.values() for name in held}))
    records = {}
    for domain, held in files.items():
        lacking = [name for name in wanted if not held.get(name)]
        if len(lacking) == len(wanted):
            raise DataError(
                f"{top / domain}: no images; expected {domain}/class/image with {', '.join(sorted(ENDINGS))}"
            )
        if lacking and not partial:
            raise DataError(
                f"{top / domain}: no image of class {', '.join(lacking)}, which other domains have; "
                f"add some, leave the class out with classes=[...], or allow it with partial=true"
            )
        listed = [(path, label) for label, name in enumerate(wanted) for path in held.get(name, [])]
        names = tuple(path.relative_to(top).as_posix() for path, _ in listed)
        records[domain] = Records(Files(top, names), np.array([label for _, label in listed], np.int64))
    return Listing(wanted, records, "a folder of one's own: domain/class/image")


def by_class(domain: Path) -> dict[str, list[Path]]:
    """The images of a domain by the folder of their class."""
    return {path.name: sorted(image_files(path)) for path in subfolders(domain)}


def image_files(top: Path) -> Iterator[Path]:
    """The images in a folder and in those in it, but for hidden ones."""
    for folder, inner, names in os.walk(top):
        inner[:] = [name for name in inner if not name.startswith(".")]
        yield from (Path(folder, name) for name in names if is_image(name))


def is_image(name: str) -> bool:
    """Whether a file is called as images are; one that begins with a dot is what some systems note beside them."""
    return os.path.splitext(name)[1].lower() in ENDINGS and not name.startswith(".")


def decoded(listing: Listing, size: int) -> Domains:
    """A few images in memory, resized to `size` pixels square, past the cache."""
    images = {}
    for domain, (pixels, labels, *_) in listing.domains.items():
        rows = [decode.decoded(pixels, row, size) for row in range(len(labels))]
        pixels = np.stack(rows) if rows else np.empty((0, 3, size, size), np.uint8)
        images[domain] = torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64))
    return Domains(listing.classes, images)
