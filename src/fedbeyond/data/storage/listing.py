"""Listings: the files and labels of each domain on disk, before any image is opened."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

Box = tuple[int, int, int, int]  # left, top, right, bottom


class Files(NamedTuple):
    """Image files under one folder, with an optional crop box for each."""

    root: Path
    names: tuple[str, ...]  # paths relative to the root
    boxes: tuple[Box, ...] = ()


class Records(NamedTuple):
    """The images of one domain in a fixed order, with labels and metadata."""

    pixels: Files | np.ndarray  # or an array, N x H x W or N x H x W x 3, of bytes
    labels: np.ndarray  # indices in the list of classes
    folds: Mapping[str, np.ndarray] = {}  # the official split: rows for "train", "val", "test"
    groups: tuple[str, ...] = ()  # patient, case or slide of each image


class Listing(NamedTuple):
    """A dataset on disk: its classes, its domains, and the layout that was recognised."""

    classes: tuple[str, ...]
    domains: dict[str, Records]
    layout: str


def sorted_records(root: Path, rows: Iterable[tuple[int, str, str, str]], parts: Iterable[str]) -> Records:
    """Return files in order of class and name, given by label, name, part and group, with the rows of each part."""
    labels, names, part_of, groups = zip(*sorted(rows), strict=True)
    folds = {part: np.flatnonzero(np.array(part_of) == part) for part in parts}
    return Records(Files(root, names), np.array(labels, np.int64), folds, groups if groups[0] else ())
