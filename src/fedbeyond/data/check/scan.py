"""Every image of a listing opened once: which are missing, which are broken, which have the same bytes."""

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..._progress import track
from ..datasets._folder import is_image
from ..storage.decode import rgb
from ..storage.listing import Listing, Records

IGNORED = {"thumbs.db", "desktop.ini"}


class Place(NamedTuple):
    """Where an image is: its domain, its class (none if it holds several) and its name."""

    domain: str
    label: str
    name: str


class Scan(NamedTuple):
    """What opening every image has shown."""

    missing: list[Place]
    broken: dict[Place, str]  # and what is wrong with each
    same: list[list[Place]]  # images with the same bytes


def scan(listing: Listing) -> Scan:
    """Open every image of a listing and decode it wholly."""
    missing, broken = [], {}
    seen: dict[bytes, list[Place]] = {}
    places = [each for domain in _unique(listing) for each in domain]
    for place, records, row in track(places, "opening images"):
        if isinstance(records.pixels, np.ndarray):
            content = records.pixels[row].tobytes()
        else:
            path = records.pixels.root / records.pixels.names[row]
            if not path.is_file():
                missing.append(place)
                continue
            content = path.read_bytes()
            wrong = fault(content)
            if wrong:
                broken[place] = wrong
                continue
        seen.setdefault(hashlib.sha256(content).digest(), []).append(place)
    return Scan(missing, broken, [same for same in seen.values() if len(same) > 1])


def _unique(listing: Listing) -> Iterator[list[tuple[Place, Records, int]]]:
    """Each domain's images, those with several boxes once."""
    for domain, records in listing.domains.items():
        if isinstance(records.pixels, np.ndarray):
            names: tuple[str, ...] = tuple(f"{domain} image {row}" for row in range(len(records.labels)))
            boxes = False
        else:
            names, boxes = records.pixels.names, bool(records.pixels.boxes)
        first = {name: row for row, name in reversed(list(enumerate(names)))}
        yield [
            (Place(domain, "" if boxes else listing.classes[records.labels[row]], names[row]), records, row)
            for row in sorted(first.values())
        ]


def fault(content: bytes) -> str:
    """What is wrong with the bytes of an image, if anything is."""
    if not content:
        return "empty"
    try:
        rgb(io.BytesIO(content))
    except ValueError as error:
        return str(error)
    return ""


def others(listing: Listing) -> tuple[list[Path], list[Path]]:
    """What lies beside the images and above them: files that are no images, images that are not read."""
    strangers, unlisted = [], []
    for records in listing.domains.values():
        if isinstance(records.pixels, np.ndarray):
            continue
        root, names, _ = records.pixels
        listed = {root / name for name in names}
        folders = {path.parent for path in listed}
        for folder in sorted(folders | {folder.parent for folder in folders}):
            if root not in folder.parents or not folder.is_dir():
                continue  # beside lists and tables all sorts of files may lie
            for path in sorted(path for path in folder.iterdir() if path.is_file()):
                if is_image(path.name):
                    unlisted += [path] if path not in listed else []
                elif not path.name.startswith(".") and path.name.lower() not in IGNORED:
                    strangers.append(path)
    return list(dict.fromkeys(strangers)), list(dict.fromkeys(unlisted))
