"""Read any folder of `domain/class/image` as a dataset."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np

from ...errors import DataError
from ...images import Dataset
from ..storage.cache import Size, load
from ..storage.listing import Files, Listing, Records
from .grouping import file_groups
from .naming import subfolders

ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}


def folder(
    root: Annotated[str, "the folder, laid out as domain/class/image"] = "",
    size: Size = 32,
    classes: Annotated[tuple[str, ...], "classes to read; empty: all"] = (),
    partial: Annotated[bool, "allow domains without images of some class"] = False,
    groups: Annotated[
        str, "patient of each image: a pattern of its path with one part in parentheses, or a CSV file"
    ] = "",
) -> Dataset:
    """Read any folder of `domain/class/image`, resized to `size` pixels square."""
    return load(list_folder(root, tuple(classes), partial, groups), size)


def list_folder(root: str, classes: tuple[str, ...] = (), partial: bool = False, groups: str = "") -> Listing:
    """Return the listing of a folder of `domain/class/image`; folder names are the domain and class names."""
    if not root:
        raise DataError("folder needs a path: give folder(root=/data/pacs), laid out as domain/class/image")
    top = Path(root).expanduser()
    if not top.is_dir():
        raise DataError(f"{root}: no such folder; give a folder laid out as domain/class/image")
    files = {domain.name: by_class(domain) for domain in subfolders(top)}
    if not files:
        for ending, spelled in {"npz": f"npz(root={root})", "csv": f"table(path='{root}/*.csv', label=COLUMN)"}.items():
            if any(top.glob(f"*.{ending}")):
                raise DataError(f"{root}: it has .{ending} files and no folders; write data as {spelled}")
        bare = sum(is_image(path.name) for path in top.iterdir())
        content = f"{bare} images directly in it, in no folder" if bare else "it has neither folders nor .npz files"
        raise DataError(f"{root}: {content}; expected domain/class/image or domain.npz")
    wanted = classes or tuple(sorted({name for by_name in files.values() for name in by_name}))
    empty = [name for name in wanted if not any(by_name.get(name) for by_name in files.values())]
    records, paths = {}, dict[str, list[Path]]()
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
        paths[domain] = [path for path, _ in listed]
        names = tuple(path.relative_to(top).as_posix() for path in paths[domain])
        records[domain] = Records(Files(top, names), np.array([label for _, label in listed], np.int64))
    if groups:
        group_of = file_groups(groups, top, [path for some in paths.values() for path in some])
        records = {
            domain: images._replace(groups=tuple(group_of[path] for path in paths[domain]))
            for domain, images in records.items()
        }
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
