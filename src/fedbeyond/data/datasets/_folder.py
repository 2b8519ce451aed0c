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
    if not files:
        bare = sum(is_image(path.name) for path in top.iterdir())
        content = f"{bare} images directly in it, in no folder" if bare else "it has neither folders nor .npz files"
        raise DataError(f"{root}: {content}; expected domain/class/image or domain.npz")
    wanted = classes or tuple(sorted({name for by_name in files.values() for name in by_name}))
    empty = [name for name in wanted if not any(by_name.get(name) for by_name in files.values())]
    records = {}
    for domain, by_name in files.items():
        missing = [name for name in wanted if not by_name.get(name)]
        if len(missing) == len(wanted):
            raise DataError(f"{top / domain}: {_no_images(top / domain)}")
        if empty and not partial:
            raise DataError(
                f"{root}: no domain has an image of class {', '.join(empty)}; add some, remove the empty folders, or "
                f"name the classes to read with classes=[...]"
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


def _no_images(domain: Path) -> str:
    """Return why a folder is not a domain, and what is expected."""
    bare = sum(is_image(path.name) for path in domain.iterdir())
    if bare:
        return (
            f"{bare} image{'s' * (bare != 1)} directly in it, in no class folder; expected {domain.name}/class/image; "
            f"if {domain.name} is a class, put it into the folder of its domain"
        )
    return f"no images; expected {domain.name}/class/image with the endings {', '.join(sorted(ENDINGS))}"


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
