"""Datasets by domain, and views of their rows; images may stay on disk and are read a batch at a time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class View:
    """Rows of one or several tensors (or memory maps) that act as one tensor; rows are read when they are indexed."""

    def __init__(self, sources: Sequence[Tensor], rows: Sequence[Tensor]) -> None:
        self.sources, self.rows = tuple(sources), torch.cat(tuple(rows))
        self.parts = tuple(zip(sources, rows, strict=True))
        self.source = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor([len(index) for index in rows]))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> torch.Size:
        """Return the shape of the tensor that the view stands for."""
        return torch.Size((len(self), *self.sources[0].shape[1:]))

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        """Return some of the images as a new tensor."""
        rows, source = self.rows[index], self.source[index]
        if len(self.sources) == 1:
            return self.sources[0].index_select(0, rows)
        images = torch.empty((len(rows), *self.shape[1:]), dtype=self.sources[0].dtype)
        for number, tensor in enumerate(self.sources):
            selected = source == number
            images[selected] = tensor.index_select(0, rows[selected])
        return images

    def split(self, size: int) -> Iterator[Tensor]:
        """Yield all images in order, `size` at a time."""
        return (self[start : start + size] for start in range(0, len(self), size))


Images = Tensor | View
Split = tuple[Images, Tensor]  # images (uint8, or floats that networks take as they are) and labels


class Notes(NamedTuple):
    """Metadata of a domain's images."""

    names: tuple[str, ...] = ()  # of files; empty: rows are identified by their numbers
    folds: Mapping[str, np.ndarray] = {}  # the official split: rows for "train", "val", "test"
    groups: tuple[str, ...] = ()  # patient, case or slide of each image
    digest: str = ""  # of the contents, if rows have no names


class Domains(NamedTuple):
    """A dataset: its classes, and the images (uint8, N x C x H x W) and labels of each domain.

    In a table, images are rows of features, and `complete` fills in the missing values of a site's split, given the
    site's training split.
    """

    classes: tuple[str, ...]
    images: dict[str, tuple[Tensor, Tensor]]
    notes: Mapping[str, Notes] = {}
    complete: Callable[[tuple[Tensor, Tensor], tuple[Tensor, Tensor]], tuple[Tensor, Tensor]] | None = None
    columns: Sequence[tuple[str, tuple[str, ...]]] = ()  # of tables: name and categories of each column
    about: Sequence[str] = ()  # of tables: lines that describe the columns and the sites

    def note(self, domain: str) -> Notes:
        """Return the metadata of a domain's images; empty if there is none."""
        return self.notes.get(domain, Notes())


def mapped(pixels: np.ndarray) -> Tensor:
    """Return a read-only memory map as a tensor."""
    import warnings

    with warnings.catch_warnings():  # torch warns of read-only arrays; images are never written
        warnings.simplefilter("ignore")
        return torch.from_numpy(pixels)


def pixels(x: Tensor) -> Tensor:
    """Convert bytes 0..255 to floats -1..1, images in channels-last layout; return floats unchanged."""
    if x.dtype != torch.uint8:
        return x
    layout = torch.channels_last if x.dim() == 4 else torch.preserve_format
    return x.to(torch.float32, memory_format=layout).div_(127.5).sub_(1)
