"""Predict a class and calibrated probabilities for a folder of images or the rows of a table, as CSV."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from .._io import storage_errors, write
from .._progress import track
from ..classifier import eval_batch_size
from ..data.datasets._folder import image_files
from ..data.datasets._table import Column, unlabelled
from ..data.storage.decode import decoded
from ..data.storage.listing import Files
from ..errors import ConfigError, DataError, StorageError
from .export import Exported

MIN_ROWS = 30  # with fewer rows, a site's means and medians are not reliable


class Predicted(NamedTuple):
    """The number of predictions, and remarks on inputs that were left out."""

    number: int
    unit: str  # images or rows
    remarks: list[str]


def predict(model: Path, given: Path, out: Path) -> Predicted:
    """Write a line for every image or row: its predicted class, the confidence, the probability of each class.

    The file is written when all predictions are done.
    """
    exported = Exported(model)
    with storage_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    if out.is_dir():
        raise StorageError(
            f"{out} is a folder; give the name of a file to write, as in --out {out / 'predictions.csv'}"
        )
    remarks: list[str] = []
    table = len(exported.card["shape"]) == 1
    batches = rows(exported, given, remarks) if table else images(exported, given, remarks)
    classes = exported.card["classes"]
    text, count = io.StringIO(), 0
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row" if table else "file", "class", "confidence", *classes])
    for names, x in batches:
        for name, probabilities in zip(names, exported.probabilities(x).tolist(), strict=True):
            best = max(range(len(probabilities)), key=probabilities.__getitem__)
            cells = [f"{probability:.4f}" for probability in probabilities]
            writer.writerow([name, classes[best], cells[best], *cells])
            count += 1
    write(out, text.getvalue().encode())
    return Predicted(count, "rows" if table else "images", remarks)


def rows(exported: Exported, file: Path, remarks: list[str]) -> Iterator[tuple[list[int], torch.Tensor]]:
    """Yield the rows of a CSV file with their numbers, preprocessed as those of an unseen site in training."""
    if not file.is_file():
        raise DataError(f"{file}: no such file; this is a model for tables: give a CSV file with a header")
    x = unlabelled(file, [Column(name, tuple(kinds)) for name, kinds in exported.card["columns"].items()])
    if len(x) < MIN_ROWS:
        remarks.append(
            f"{file} has {len(x)} rows; numbers are standardised with the rows of the file: give all rows of the site"
        )
    yield list(range(1, len(x) + 1)), x


def images(exported: Exported, folder: Path, remarks: list[str]) -> Iterator[tuple[list[str], torch.Tensor]]:
    """Yield batches of images, preprocessed as in training; an image that cannot be read is left out with a remark."""
    channels, height, width = exported.card["shape"]
    if channels != 3 or height != width:
        raise ConfigError(
            f"the model needs images of {channels} x {height} x {width}; predict supports square RGB images only"
        )
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; give a folder of images")
    paths = sorted(image_files(folder))
    if not paths:
        raise DataError(f"{folder}: no images in this folder; give a folder of images")
    names: list[str] = []
    batch: list[np.ndarray] = []
    for path in track(paths, "reading images"):
        name = path.relative_to(folder).as_posix()
        try:
            batch.append(decoded(Files(folder, (name,)), 0, height))
            names.append(name)
        except DataError as error:
            remarks.append(f"left out: {error}")
        if len(names) == eval_batch_size("cpu"):
            yield names, torch.from_numpy(np.stack(batch))
            names, batch = [], []
    if names:
        yield names, torch.from_numpy(np.stack(batch))
