"""Batches of images with labels, augmentations, and samplers that choose the images of a site's round."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """Images with labels, optional augmented views, and the domain number of each image if data are pooled."""

    x: Tensor
    y: Tensor
    views: tuple[Tensor, ...] = ()
    origin: Tensor | None = None

    @property
    def merged(self) -> tuple[Tensor, Tensor]:
        """Return all images, including views, with their labels."""
        if not self.views:
            return self.x, self.y
        return torch.cat((self.x, *self.views)), self.y.repeat(1 + len(self.views))

    @property
    def origins(self) -> Tensor:
        """Return the domain numbers of all images, including views."""
        assert self.origin is not None, "only a pooled method knows the domain of an image"
        return self.origin.repeat(1 + len(self.views))


Augment = Callable[[Batch, torch.Generator], Batch]


def plain(batch: Batch, rng: torch.Generator) -> Batch:
    """Return the batch unchanged."""
    return batch


def chain(first: Augment, second: Augment) -> Augment:
    """Return an augmentation that applies one after the other."""
    return lambda batch, rng: second(first(batch, rng), rng)


@dataclass(frozen=True)
class CachedCopies:
    """The augmentation of a site that has augmented copies of its images: choose one of them for each image."""

    number: int
    make: Augment  # what the copies were made with
    name: str  # its spec

    def __call__(self, batch: Batch, rng: torch.Generator) -> Batch:
        chosen = torch.randint(self.number, (len(batch.x),), generator=rng).to(batch.x.device)
        return batch._replace(x=batch.x[torch.arange(len(batch.x), device=batch.x.device), chosen])


Sampler = Callable[[Tensor, int, int, torch.Generator], Iterator[Tensor]]  # labels, epochs, batch size, random stream


def cut(order: Tensor, batch_size: int) -> Iterator[Tensor]:
    """Yield batches of an order; drop a last batch of one image, on which BatchNorm cannot train."""
    for index in order.split(batch_size):
        if len(index) > 1 or len(order) == 1 or batch_size == 1:
            yield index


def shuffled(labels: Tensor, epochs: int, batch_size: int, rng: torch.Generator) -> Iterator[Tensor]:
    """Yield batches with every image once an epoch."""
    for _ in range(epochs):
        yield from cut(torch.randperm(len(labels), generator=rng), batch_size)


def balanced(budget: int, fresh: bool = True) -> Sampler:
    """Return a sampler of `budget` batches a round at every site: some of its images, or each image several times.

    Images are drawn again each round; with `fresh=False` they are always the first ones (as FedSB's authors do).
    """

    def sample(labels: Tensor, epochs: int, batch_size: int, rng: torch.Generator) -> Iterator[Tensor]:
        wanted, available = budget * batch_size, len(labels)
        if fresh:
            passes = -(-wanted // available)
            order = torch.cat([torch.randperm(available, generator=rng) for _ in range(passes)])[:wanted]
        else:
            order = torch.arange(wanted) % available
        yield from cut(order, batch_size)

    return sample
