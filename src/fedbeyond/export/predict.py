"""What an exported model says of a folder of images, or of the rows of a table, as a table."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from .._io import storing, write
from .._progress import track
from ..classifier import at_once
from ..data.datasets._folder import image_files
from ..data.datasets._table import Column, unlabelled
from ..data.storage.decode import decoded
from ..data.storage.listing import Files
from ..errors import ConfigError, DataError, StorageError
from .export import Exported

FEW = 30  # rows from which a site's means and medians are not to be trusted


class Told(NamedTuple):
    """How many were predicted, and what is to be said of the rest."""

    number: int
    what: str  # was predicted: images or rows
    remarks: list[str]


def predict(model: Path, given: Path, out: Path) -> Told:
    """Write a line for every image or row: what it is taken for, how surely, the chance of each class.

    The file appears when all is done.
    """
    asked = Exported(model)
    with storing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    if out.is_dir():
        raise StorageError(f"{out} is a folder; give the name of a file to write, as --out {out / 'predictions.csv'}")
    remarks: list[str] = []
    table = len(asked.card["shape"]) == 1
    parts = rows(asked, given, remarks) if table else images(asked, given, remarks)
    names = asked.card["classes"]
    text, count = io.StringIO(), 0
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row" if table else "file", "class", "confidence", *names])
    for which, x in parts:
        for name, chances in zip(which, asked.chances(x).tolist(), strict=True):
            best = max(range(len(chances)), key=chances.__getitem__)
            told = [f"{chance:.4f}" for chance in chances]
            writer.writerow([name, names[best], told[best], *told])
            count += 1
    write(out, text.getvalue().encode())
    return Told(count, "rows" if table else "images", remarks)


def rows(asked: Exported, file: Path, remarks: list[str]) -> Iterator[tuple[list[int], torch.Tensor]]:
    """The rows of a CSV file by their numbers, as an unseen site has them in training."""
    if "columns" not in asked.card:
        raise ConfigError("an older version exported this model of tables without its columns; export it again")
    if not file.is_file():
        raise DataError(f"{file}: no such file; this is a model of tables, give a CSV file with a header")
    x = unlabelled(file, [Column(name, tuple(kinds)) for name, kinds in asked.card["columns"].items()])
    if len(x) < FEW:
        remarks.append(
            f"{file} has {len(x)} rows; numbers are standardised by the rows of the file, so give all that the site has"
        )
    yield list(range(1, len(x) + 1)), x


def images(asked: Exported, folder: Path, remarks: list[str]) -> Iterator[tuple[list[str], torch.Tensor]]:
    """Images as training saw them, some at a time; what cannot be read is left out with a remark."""
    channels, height, width = asked.card["shape"]
    if channels != 3 or height != width:
        raise ConfigError(
            f"the model is for images of {channels} x {height} x {width}; predict makes squares in colour"
        )
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; give one of images")
    paths = sorted(image_files(folder))
    if not paths:
        raise DataError(f"{folder}: no images in it")
    names: list[str] = []
    found: list[np.ndarray] = []
    for path in track(paths, "reading images"):
        name = path.relative_to(folder).as_posix()
        try:
            found.append(decoded(Files(folder, (name,)), 0, height))
            names.append(name)
        except DataError as error:
            remarks.append(f"left out: {error}")
        if len(names) == at_once("cpu"):
            yield names, torch.from_numpy(np.stack(found))
            names, found = [], []
    if names:
        yield names, torch.from_numpy(np.stack(found))
