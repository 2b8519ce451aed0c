"""Datasets by domain, and views of their rows; images may stay on disk and are read a batch at a time."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .errors import DataError, nearest


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


class Domain(NamedTuple):
    """The images (or rows) and labels of one domain, and the group of each image: its patient, case or slide."""

    images: Tensor
    labels: Tensor
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Dataset:
    """A dataset: its classes, and the images (uint8, N x C x H x W) and labels of each domain.

    In a table, images are rows of features, and `complete` fills in the missing values of a site's split, given the
    site's training split.
    """

    classes: tuple[str, ...]
    images: dict[str, tuple[Tensor, Tensor]]
    notes: Mapping[str, Notes] = field(default_factory=dict)
    complete: Callable[[tuple[Tensor, Tensor], tuple[Tensor, Tensor]], tuple[Tensor, Tensor]] | None = None
    columns: Sequence[tuple[str, tuple[str, ...]]] = ()  # of tables: name and categories of each column
    about: Sequence[str] = ()  # of tables: lines that describe the columns and the sites
    name: str = ""  # for people; content_digest identifies the data
    label: str = ""  # of tables: the column of the class
    missing: tuple[str, ...] = ()  # of tables: texts that mean a missing value, besides ?, NA and others

    def note(self, domain: str) -> Notes:
        """Return the metadata of a domain's images; empty if there is none."""
        return self.notes.get(domain, Notes())

    @property
    def domains(self) -> tuple[str, ...]:
        """Return the names of the domains."""
        return tuple(self.images)

    def __getitem__(self, domain: str) -> Domain:
        """Return the images and labels of a domain."""
        if domain not in self.images:
            raise DataError(f"these data have no domain {domain!r}; {nearest(str(domain), self.images)}")
        return Domain(*self.images[domain], self.note(domain).groups)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {len(labels):,}" for name, (_, labels) in self.images.items())
        shape = " x ".join(map(str, next(iter(self.images.values()))[0].shape[1:]))
        unit = "rows" if self.complete else "images"
        name = f" {self.name}" if self.name else ""
        return f"<Dataset{name}: {len(self.classes)} classes, {unit} of {shape}, domains: {sizes}>"


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


def content_digest(data: Dataset) -> str:
    """Return 16 hex digits that identify the content of a dataset; each tensor is hashed once.

    Classes, columns, inputs, labels and metadata of each domain count. The dataset's name, the order of its domains and
    the layout of tensors in memory do not.
    """
    hashed = hashlib.sha256(repr((data.classes, list(map(tuple, data.columns)), _named(data.complete))).encode())
    for domain in sorted(data.images):
        note = data.note(domain)
        rows = [np.asarray(note.folds[part], np.int64).tobytes() for part in sorted(note.folds)]
        texts = (domain, *map(str, note.names)), tuple(map(str, note.groups)), note.digest, sorted(note.folds), rows
        hashed.update(repr((*texts, *map(tensor_digest, data.images[domain]))).encode())
    return hashed.hexdigest()[:16]


def tensor_digest(tensor: Tensor) -> str:
    """Compute a digest of a tensor's type, shape and bytes; it is kept with the tensor until torch changes that."""
    version, known = getattr(tensor, "_content_digest", (None, ""))
    if version != tensor._version:
        hashed = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        for some in tensor.split(256) if tensor.numel() else ():  # memory maps are not loaded at once
            hashed.update(some.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
        known = hashed.hexdigest()
        tensor._content_digest = tensor._version, known  # type: ignore[attr-defined]
    return known


def _named(function: object) -> str:
    """Return the name of a function, and the arguments that a partial one has."""
    if isinstance(function, partial):
        return f"{_named(function.func)} {function.args} {sorted(function.keywords.items())}"
    return getattr(function, "__qualname__", "") if function else ""
