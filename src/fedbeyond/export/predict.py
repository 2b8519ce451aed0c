"""Predict a class and calibrated probabilities for images or the rows of a table, as CSV."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._io import storage_errors, write
from .._progress import track
from ..classifier import eval_batch_size
from ..data.datasets._folder import image_files
from ..data.datasets._table import missing_texts, unlabelled
from ..data.datasets.columns import Column, canonical, is_missing
from ..data.datasets.naming import plain
from ..data.datasets.table_rows import read
from ..data.storage.decode import decoded
from ..data.storage.listing import Files
from ..errors import ConfigError, DataError, StorageError
from .export import Exported
from .score import LabelSource, score

MIN_ROWS = 30  # with fewer rows, a site's means and medians are not reliable
PREFIX = "predict_"  # of an output column whose name is taken
LEFT_OUT = "left out: "


class Predicted(NamedTuple):
    """The number of predictions, remarks on the inputs, and lines about accuracy."""

    number: int
    unit: str  # images or rows
    remarks: list[str]
    scores: list[str]


class Batch(NamedTuple):
    """Inputs of the model, with their names, their labels and the cells that are copied to the output."""

    names: Sequence[str]
    labels: Sequence[str]  # a class of the model, another label, or empty
    copied: Sequence[Sequence[str]]
    inputs: Tensor


class Source(NamedTuple):
    """What is predicted: images or rows, in batches."""

    unit: str
    name: str  # of the column that identifies a line of the output
    copied: Sequence[str]  # columns of the table that are no features
    labels: LabelSource
    batches: Iterator[Batch]


def predict(model: Path, given: Sequence[Path], out: Path, overwrite: bool = False) -> Predicted:
    """Write a line for every image or row: its predicted class, the confidence, the probability of each class.

    `given` are images and folders of images, or one table. The file is written when all predictions are done.
    """
    ensure_writable(out, overwrite)
    exported, remarks = Exported(model), list[str]()
    classes = exported.card["classes"]
    source = (read_table if len(exported.card["shape"]) == 1 else read_images)(exported.card, given, remarks)
    name, *answers = free_names([source.name, "class", "confidence", *classes], source.copied, remarks)
    text, labels, outputs = io.StringIO(), list[str](), list[Tensor]()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([name, *source.copied, *answers])
    for batch in source.batches:
        outputs.append(exported.probabilities(batch.inputs))
        labels += batch.labels
        for identity, copied, probabilities in zip(batch.names, batch.copied, outputs[-1].tolist(), strict=True):
            best = max(range(len(probabilities)), key=probabilities.__getitem__)
            cells = [f"{probability:.4f}" for probability in probabilities]
            writer.writerow([identity, *copied, classes[best], cells[best], *cells])
    if not outputs:
        reason = remarks[0].removeprefix(LEFT_OUT)
        raise DataError(f"no image can be read: {reason}; this is a model for images: give images or folders of images")
    write(out, text.getvalue().encode())
    scores = score(torch.cat(outputs), labels, classes, source.unit, source.labels)
    return Predicted(len(labels), source.unit, remarks, scores)


def ensure_writable(out: Path, overwrite: bool) -> None:
    """Raise if the output is a folder, or a file that may not be replaced; create its folder."""
    if out.is_dir():
        raise StorageError(
            f"{out} is a folder; give the name of a file to write, as in --out {out / 'predictions.csv'}"
        )
    if out.exists() and not overwrite:
        raise StorageError(f"{out} exists; give another file with --out, or replace this one with --overwrite")
    with storage_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)


def free_names(names: Iterable[str], taken: Iterable[str], remarks: list[str]) -> list[str]:
    """Return names of output columns, with a prefix where a name is taken."""
    used, free = set(taken), list[str]()
    for name in names:
        column = name
        while column in used:
            column = PREFIX + column
        if column != name:
            remarks.append(f"column name {name!r} is taken; predict writes its own column as {column!r}")
        used.add(column)
        free.append(column)
    return free


def read_table(card: dict[str, Any], given: Sequence[Path], remarks: list[str]) -> Source:
    """Read the rows of a CSV file, preprocessed as those of an unseen site in training, and its other columns."""
    if len(given) != 1:
        raise DataError(f"{len(given)} files; this is a model for tables: give one CSV file with a header")
    file = given[0]
    if not file.is_file():
        found = "a folder" if file.is_dir() else "no such file"
        raise DataError(f"{file}: {found}; this is a model for tables: give a CSV file with a header")
    columns = [Column(name, tuple(kinds)) for name, kinds in card["columns"].items()]
    if not columns:
        raise DataError(
            "this model was trained on rows without names of columns (standardise=False); call it in Python"
        )
    x = unlabelled(file, columns, card.get("missing") or missing_texts(card["config"]["data"]))
    if len(x) < MIN_ROWS:
        remarks.append(
            f"{file} has {len(x)} rows; numbers are standardised with the rows of the file: give all rows of the site"
        )
    rows, label = read(file, ()), card.get("label", "")
    copied = [name for name in rows[0] if name not in card["columns"]]
    truth = [row.get(label, "") if label else "" for row in rows]
    labels = ["" if is_missing(value) else canonical(value) for value in truth]
    absent = f"{file} has no labels in a column {label!r}" if label else "the card of the model names no label column"
    numbers = [str(number) for number in range(1, len(rows) + 1)]
    batch = Batch(numbers, labels, [[row[name] for name in copied] for row in rows], x)
    return Source("rows", "row", copied, LabelSource(f"column {label!r}", absent), iter([batch]))


def read_images(card: dict[str, Any], given: Sequence[Path], remarks: list[str]) -> Source:
    """Read image files and folders of images; the folders that images are in are their labels."""
    channels, height, width = card["shape"]
    if channels != 3 or height != width:
        raise ConfigError(
            f"the model needs images of {channels} x {height} x {width}; predict supports square RGB images only"
        )
    classes = {plain(name): name for name in card["classes"]} | {name: name for name in card["classes"]}
    paths: dict[Path, tuple[str, str]] = {}  # of each image: its name in the output and its label
    for path in given:
        paths |= list_images(path, classes, alone=len(given) == 1)
    where = LabelSource("folder names", "the images are not in folders named after classes")
    return Source("images", "file", (), where, decode(paths, height, remarks))


def list_images(given: Path, classes: Mapping[str, str], alone: bool) -> dict[Path, tuple[str, str]]:
    """Return the name in the output and the label of an image file, or of all images in a folder.

    Names are paths as given, or relative to the folder if it is given `alone`. `classes` maps spellings to classes.
    """
    if given.is_file():
        return {given: (given.as_posix(), folder_label([given.parent.name], "", classes))}
    if not given.is_dir():
        raise DataError(f"{given}: no such file or folder; give image files or folders of images")
    paths = sorted(image_files(given))
    if not paths:
        raise DataError(f"{given}: no images in this folder; give image files or folders of images")
    images = {}
    for path in paths:
        inner = path.relative_to(given)
        label = folder_label(inner.parts[-2::-1], given.resolve().name, classes)
        images[path] = (inner if alone else path).as_posix(), label
    return images


def folder_label(folders: Sequence[str], top: str, classes: Mapping[str, str]) -> str:
    """Return the class that a folder of an image is named after, else its nearest folder, which is no class.

    `folders` are those inside the given folder, the nearest first. `top` is the given folder, if its name is a class.
    """
    matches = (classes.get(name) or classes.get(plain(name)) for name in (*folders, top) if name)
    return next(filter(None, matches), folders[0] if folders else "")


def decode(paths: dict[Path, tuple[str, str]], size: int, remarks: list[str]) -> Iterator[Batch]:
    """Yield batches of images, preprocessed as in training; an image that cannot be read is left out with a remark."""
    names: list[str] = []
    labels: list[str] = []
    pixels: list[np.ndarray] = []
    for count, path in enumerate(track(list(paths), "reading images"), 1):
        try:
            pixels.append(decoded(Files(path.parent, (path.name,)), 0, size))
            names.append(paths[path][0])
            labels.append(paths[path][1])
        except DataError as error:
            remarks.append(f"{LEFT_OUT}{error}")
        if len(names) == eval_batch_size("cpu") or (names and count == len(paths)):
            yield Batch(names, labels, [()] * len(names), torch.from_numpy(np.stack(pixels)))
            names, labels, pixels = [], [], []
