"""Draw a picture of a dataset: a row for each domain, with a few images of each class."""

import io
from pathlib import Path

import numpy as np
import torch

from ..._io import PRIVATE_FOLDER, create_private, storage_errors, write
from ...errors import ConfigError, StorageError
from ...images import Dataset
from ..finding import printable
from ..storage.cache import home


def draw(domains: Dataset, path: Path, each: int = 3, least: int = 64) -> None:
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
    content = io.BytesIO()
    try:
        canvas.save(content, Image.registered_extensions().get(path.suffix.lower()))
    except (ValueError, OSError):  # an unknown ending, or one of a format that PIL only reads
        raise ConfigError(f"{path}: not a kind of picture; give --out a file name that ends in .png") from None
    in_cache = home() in path.parents
    with storage_errors(path):
        if in_cache:
            home().mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
            create_private(path.parent)
        path.parent.mkdir(parents=True, exist_ok=True)
    write(path, content.getvalue(), private=in_cache)


def ensure_new(path: Path) -> None:
    """Raise if a file would be overwritten."""
    if path.exists():
        raise StorageError(f"{path} exists and is not overwritten; delete it, or give another file with --out")
