"""Read any folder of `domain/class/image` as a dataset."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from ...errors import DataError
from ...images import Domains
from ..storage.cache import load
from ..storage.listing import Files, Listing, Records
from .naming import subfolders

ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}


def folder(
    root: str = "", size: Annotated[int, Field(gt=0)] = 32, classes: tuple[str, ...] = (), partial: bool = False
) -> Domains:
    """Read any folder of `domain/class/image`, resized to `size` pixels square.

    `classes` limits the classes that are read; `partial` allows domains without images of some class.
    """
    return load(list_folder(root, tuple(classes), partial), size)


def list_folder(root: str, classes: tuple[str, ...] = (), partial: bool = False) -> Listing:
    """Return the listing of a folder of `domain/class/image`; folder names are the domain and class names."""
    if not root:
        raise DataError("folder needs a path: give folder(root=/data/pacs), laid out as domain/class/image")
    top = Path(root).expanduser()
    if not top.is_dir():
        raise DataError(f"{root}: no such folder; give a folder laid out as domain/class/image")
    files = {domain.name: by_class(domain) for domain in subfolders(top)}
    wanted = classes or tuple(sorted({name for by_name in files.values() for name in by_name}))
    records = {}
    for domain, by_name in files.items():
        missing = [name for name in wanted if not by_name.get(name)]
        if len(missing) == len(wanted):
            raise DataError(
                f"{top / domain}: no images; expected {domain}/class/image with the endings "
                f"{', '.join(sorted(ENDINGS))}"
            )
        if missing and not partial:
            raise DataError(
                f"{top / domain}: no image of class {', '.join(missing)}, which other domains have; "
                f"add some, leave the class out with classes=[...], or allow it with partial=true"
            )
        listed = [(path, label) for label, name in enumerate(wanted) for path in by_name.get(name, [])]
        names = tuple(path.relative_to(top).as_posix() for path, _ in listed)
        records[domain] = Records(Files(top, names), np.array([label for _, label in listed], np.int64))
    return Listing(wanted, records, "custom folder of domain/class/image")


def by_class(domain: Path) -> dict[str, list[Path]]:
    """Return the images of a domain by class folder."""
    return {path.name: sorted(image_files(path)) for path in subfolders(domain)}


def image_files(top: Path) -> Iterator[Path]:
    """Yield the images in a folder and its subfolders, without hidden ones."""
    for folder, inner, names in os.walk(top):
        inner[:] = [name for name in inner if not name.startswith(".")]
        yield from (Path(folder, name) for name in names if is_image(name))


def is_image(name: str) -> bool:
    """Return whether a file name is that of an image; names that begin with a dot are metadata of some systems."""
    return os.path.splitext(name)[1].lower() in ENDINGS and not name.startswith(".")
