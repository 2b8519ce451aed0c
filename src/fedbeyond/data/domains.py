"""Any folder of `domain/class/image` as a dataset."""

from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from ..errors import DataError
from .cache import load
from .images import Domains as Domains
from .listing import Files, Listing, Records

ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}


def folder(
    root: str = "", size: Annotated[int, Field(gt=0)] = 32, classes: tuple[str, ...] = (), partial: bool = False
) -> Domains:
    """Any folder of `domain/class/image`, resized to `size` pixels square.

    `classes` limits what is read; `partial` allows domains that lack some class.
    """
    return load(found(root, classes, partial), size)


def found(root: str, classes: tuple[str, ...] = (), partial: bool = False) -> Listing:
    """What lies in a folder of `domain/class/image`; no image is opened."""
    if not root:
        raise DataError("folder needs the path of the data: folder(root=/data/pacs), laid out domain/class/image")
    top = Path(root).expanduser()
    if not top.is_dir():
        raise DataError(f"{root}: no such folder; give a folder laid out domain/class/image")
    domains = [path for path in sorted(top.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    files = {domain.name: listing(domain) for domain in domains}
    wanted = tuple(classes) or tuple(sorted({name for held in files.values() for name in held}))
    for domain, held in files.items():
        lacking = [name for name in wanted if not held.get(name)]
        if len(lacking) == len(wanted):
            raise DataError(f"{top / domain}: no images; expected {domain}/class/image with {', '.join(ENDINGS)}")
        if lacking and not partial:
            raise DataError(
                f"{top / domain}: no image of class {', '.join(lacking)}, which other domains have; "
                f"add some, leave the class out with classes=[...], or allow it with partial=true"
            )
    each = {domain: records(top / domain, held, wanted) for domain, held in files.items()}
    return Listing(wanted, each, "domain/class/image")


def listing(domain: Path) -> dict[str, list[Path]]:
    """The images of a domain by the folder of their class."""
    return {
        path.name: sorted(file for file in path.rglob("*") if file.suffix.lower() in ENDINGS)
        for path in sorted(domain.iterdir())
        if path.is_dir() and not path.name.startswith(".")
    }


def records(domain: Path, files: dict[str, list[Path]], classes: tuple[str, ...]) -> Records:
    """Listed images in the order of `classes`, their labels the places there; names are relative to the domain."""
    listed = [
        (str(path.relative_to(domain)), label) for label, name in enumerate(classes) for path in files.get(name, [])
    ]
    labels = np.array([label for _, label in listed], np.int64)
    return Records(Files(domain, tuple(name for name, _ in listed)), labels)
