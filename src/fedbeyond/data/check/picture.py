"""Draw a picture of a dataset: a row for each domain, with a few images of each class."""

from pathlib import Path

import numpy as np
import torch

from ..._io import storage_errors
from ...errors import ConfigError, StorageError
from ...images import Domains
from ..finding import printable


def draw(domains: Domains, path: Path, each: int = 3, least: int = 64) -> None:
    """Write a grid of images to a file; each image is at least `least` pixels wide."""
    from PIL import Image, ImageDraw

    ensure_new(path)
    sample = next(iter(domains.images.values()))[0]
    if sample.ndim != 4:
        raise ConfigError(f"the dataset is a table of {sample.shape[1]} features; data show is for images only")
    times = max(1, -(-least // sample.shape[-1]))
    side, margin, top = sample.shape[-1] * times + 2, max(90, 12 + 6 * max(map(len, domains.images))), 24
    width, height = margin + side * each * len(domains.classes), top + side * len(domains.images)
    canvas = Image.new("RGB", (width, height), "white")
    pen = ImageDraw.Draw(canvas)
    for column, name in enumerate(domains.classes):
        pen.text((margin + side * each * column + 4, 6), printable(name), fill="black")
    for row, (domain, (images, labels)) in enumerate(domains.images.items()):
        pen.text((6, top + side * row + side // 2 - 5), printable(domain), fill="black")
        for column in range(len(domains.classes)):
            for position, index in enumerate(torch.nonzero(labels == column)[:each, 0].tolist()):
                pixels = images[index].permute(1, 2, 0).expand(-1, -1, 3).numpy()
                tile = Image.fromarray(np.repeat(np.repeat(pixels, times, 0), times, 1))
                canvas.paste(tile, (margin + side * (each * column + position), top + side * row))
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            canvas.save(path)
        except ValueError as error:
            raise ConfigError(f"{path}: {error}; give --out a file name that ends in .png") from None


def ensure_new(path: Path) -> None:
    """Raise if a file would be overwritten."""
    if path.exists():
        raise StorageError(f"{path} exists and is not overwritten; delete it, or give another file with --out")
