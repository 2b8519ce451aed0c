"""What an exported model says of a folder of images, as a table."""

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from .data.decode import decoded
from .data.domains import image_files
from .data.listing import Files
from .errors import ConfigError, DataError
from .evaluate import AT_ONCE
from .export import Exported
from .progress import track


def predict(model: Path, folder: Path, out: Path) -> tuple[int, list[str]]:
    """Write a line for every image: what it is taken for, how surely, the chance of each class; count and failures."""
    asked = Exported(model)
    shape = asked.card["shape"]
    if len(shape) != 3:
        raise ConfigError(f"{model} is a model of tables; fedbeyond predict reads images")
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; give one of images")
    paths = sorted(image_files(folder))
    if not paths:
        raise DataError(f"{folder}: no images in it")
    failures: list[str] = []
    with open(out, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["file", "class", "confidence", *asked.card["classes"]])
        for names, images in batches(folder, paths, shape[1], failures):
            for name, row in zip(names, asked.chances(images).tolist(), strict=True):
                best = max(range(len(row)), key=row.__getitem__)
                told = [f"{chance:.4f}" for chance in row]
                writer.writerow([name, asked.card["classes"][best], told[best], *told])
    return len(paths) - len(failures), failures


def batches(
    folder: Path, paths: list[Path], size: int, failures: list[str]
) -> Iterator[tuple[list[str], torch.Tensor]]:
    """Images as training saw them, some at a time; what cannot be read goes to `failures`."""
    names: list[str] = []
    images: list[np.ndarray] = []
    for path in track(paths, "reading images"):
        name = path.relative_to(folder).as_posix()
        try:
            images.append(decoded(Files(folder, (name,)), 0, size))
            names.append(name)
        except DataError as error:
            failures.append(str(error))
        if len(names) == AT_ONCE:
            yield names, torch.from_numpy(np.stack(images))
            names, images = [], []
    if names:
        yield names, torch.from_numpy(np.stack(images))
