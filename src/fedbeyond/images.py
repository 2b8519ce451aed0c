"""Images that may stay on disk: a dataset by domain, and views of its rows that are read a batch at a time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class View:
    """Rows of one or several tensors (or memory maps) as if they were one tensor; read when they are asked for."""

    def __init__(self, sources: Sequence[Tensor], rows: Sequence[Tensor]) -> None:
        self.sources, self.rows = tuple(sources), torch.cat(tuple(rows))
        self.parts = tuple(zip(sources, rows, strict=True))
        self.source = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor([len(some) for some in rows]))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> torch.Size:
        """As a tensor's."""
        return torch.Size((len(self), *self.sources[0].shape[1:]))

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        """Some of the images, as a tensor of their own."""
        rows, source = self.rows[index], self.source[index]
        if len(self.sources) == 1:
            return self.sources[0].index_select(0, rows)
        images = torch.empty((len(rows), *self.shape[1:]), dtype=self.sources[0].dtype)
        for place, tensor in enumerate(self.sources):
            mine = source == place
            images[mine] = tensor.index_select(0, rows[mine])
        return images

    def split(self, size: int) -> Iterator[Tensor]:
        """All images in their order, `size` at a time."""
        return (self[start : start + size] for start in range(0, len(self), size))


Images = Tensor | View
Split = tuple[Images, Tensor]  # images (uint8, or floats that are ready) and labels


class Notes(NamedTuple):
    """What is known of a domain's images besides their labels."""

    names: tuple[str, ...] = ()  # of files; none: rows are known by their numbers
    folds: Mapping[str, np.ndarray] = {}  # the field's own split: rows for "train", "val", "test"
    groups: tuple[str, ...] = ()  # patient, case or slide of each image
    digest: str = ""  # of the contents, where rows have no names


class Domains(NamedTuple):
    """What a dataset is: its classes, and the images (uint8, N x C x H x W) and labels of each domain.

    Of tables, rows of features stand for images, and `complete` fills in what is missing in a split of a site, given
    the site's training split.
    """

    classes: tuple[str, ...]
    images: dict[str, tuple[Tensor, Tensor]]
    notes: Mapping[str, Notes] = {}
    complete: Callable[[tuple[Tensor, Tensor], tuple[Tensor, Tensor]], tuple[Tensor, Tensor]] | None = None
    columns: Sequence[tuple[str, tuple[str, ...]]] = ()  # of tables: names, and the categories of those that have some

    def note(self, domain: str) -> Notes:
        """What is known of a domain's images; nothing if nobody said."""
        return self.notes.get(domain, Notes())


def mapped(pixels: np.ndarray) -> Tensor:
    """A memory map that can only be read, as a tensor."""
    import warnings

    with warnings.catch_warnings():  # torch warns of arrays that cannot be written; nobody writes into images
        warnings.simplefilter("ignore")
        return torch.from_numpy(pixels)


def pixels(x: Tensor) -> Tensor:
    """Bytes 0..255 as floats -1..1, laid out as networks are; floats are taken to be ready."""
    if x.dtype != torch.uint8:
        return x
    layout = torch.channels_last if x.dim() == 4 else torch.preserve_format
    return x.to(torch.float32, memory_format=layout).div_(127.5).sub_(1)
