"""What lies on disk, before any image is opened: the files and labels of each domain."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

Box = tuple[int, int, int, int]  # left, top, right, bottom


class Files(NamedTuple):
    """Image files under one folder, and perhaps the part of each that is meant."""

    root: Path
    names: tuple[str, ...]  # paths relative to the root
    boxes: tuple[Box, ...] = ()


class Records(NamedTuple):
    """The images of one domain in a fixed order, and what is known of each."""

    pixels: Files | np.ndarray  # or an array, N x H x W or N x H x W x 3, of bytes
    labels: np.ndarray  # places in the list of classes
    folds: Mapping[str, np.ndarray] = {}  # the field's own split: rows for "train", "val", "test"
    groups: tuple[str, ...] = ()  # patient, case or slide of each image


class Listing(NamedTuple):
    """A dataset as it was found: its classes, its domains, and the layout it was recognised by."""

    classes: tuple[str, ...]
    domains: dict[str, Records]
    layout: str
