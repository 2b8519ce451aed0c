"""Open every image of a listing once, and find missing, corrupt and duplicate images."""

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..._progress import track
from ..datasets._folder import is_image
from ..storage.decode import rgb
from ..storage.listing import Files, Listing, Records

IGNORED = {"thumbs.db", "desktop.ini"}


class ImageRef(NamedTuple):
    """An image on disk: its domain, its class (empty if its boxes have several) and its name."""

    domain: str
    label: str
    name: str


class Scan(NamedTuple):
    """The results of opening every image."""

    missing: list[ImageRef]
    broken: dict[ImageRef, str]  # with the reason
    same: list[list[ImageRef]]  # images with the same bytes


def scan(listing: Listing) -> Scan:
    """Open every image of a listing and decode all of it."""
    missing, broken = [], {}
    by_digest: dict[bytes, list[ImageRef]] = {}
    for image, records, row in track(list(_unique(listing)), "opening images"):
        if isinstance(records.pixels, np.ndarray):
            content = records.pixels[row].tobytes()
        else:
            path = records.pixels.root / records.pixels.names[row]
            if not path.is_file():
                missing.append(image)
                continue
            content = path.read_bytes()
            reason = decode_error(content)
            if reason:
                broken[image] = reason
                continue
        by_digest.setdefault(hashlib.sha256(content).digest(), []).append(image)
    return Scan(missing, broken, [same for same in by_digest.values() if len(same) > 1])


def _unique(listing: Listing) -> Iterator[tuple[ImageRef, Records, int]]:
    """Yield each domain's images; a file with several boxes is yielded once."""
    for domain, records in listing.domains.items():
        names, boxes = [f"{domain} image {row}" for row in range(len(records.labels))], False
        if isinstance(records.pixels, Files):
            names, boxes = list(records.pixels.names), bool(records.pixels.boxes)
        first = {name: row for row, name in reversed(list(enumerate(names)))}
        for row in sorted(first.values()):
            label = "" if boxes else listing.classes[records.labels[row]]
            yield ImageRef(domain, label, names[row]), records, row


def decode_error(content: bytes) -> str:
    """Return why the bytes of an image cannot be decoded, or an empty string."""
    if not content:
        return "empty"
    try:
        rgb(io.BytesIO(content))
    except ValueError as error:
        return str(error)
    return ""


def unread_files(top: Path, listing: Listing) -> Iterator[list[str]]:
    """Yield the files in image folders and their parents that are not images, and the images that are not read."""
    other_files, unlisted = [], []
    for records in listing.domains.values():
        if isinstance(records.pixels, np.ndarray):
            continue
        root, names, _ = records.pixels
        listed = {root / name for name in names}
        folders = {path.parent for path in listed}
        for folder in sorted(folders | {folder.parent for folder in folders}):
            if root not in folder.parents or not folder.is_dir():
                continue  # any file may be beside lists and tables
            for path in sorted(path for path in folder.iterdir() if path.is_file()):
                if is_image(path.name):
                    unlisted += [path] if path not in listed else []
                elif not path.name.startswith(".") and path.name.lower() not in IGNORED:
                    other_files.append(path)
    for paths in (other_files, unlisted):
        yield [path.relative_to(top).as_posix() for path in dict.fromkeys(paths)]
