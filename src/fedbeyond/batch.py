"""Batches of images with labels, augmentations of them, and samplers that say which images a site sees in a round."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """Images with their labels, perhaps in further styles too; if they are pooled, the number of each one's domain."""

    x: Tensor
    y: Tensor
    views: tuple[Tensor, ...] = ()
    origin: Tensor | None = None

    @property
    def merged(self) -> tuple[Tensor, Tensor]:
        """All images, views too, with their labels."""
        if not self.views:
            return self.x, self.y
        return torch.cat((self.x, *self.views)), self.y.repeat(1 + len(self.views))

    @property
    def origins(self) -> Tensor:
        """The domains of all images, views too."""
        assert self.origin is not None, "only a pooled method may ask where an image comes from"
        return self.origin.repeat(1 + len(self.views))


Augment = Callable[[Batch, torch.Generator], Batch]


def plain(batch: Batch, rng: torch.Generator) -> Batch:
    """The batch as it is."""
    return batch


def chain(first: Augment, second: Augment) -> Augment:
    """One after the other."""
    return lambda batch, rng: second(first(batch, rng), rng)


Sampler = Callable[[Tensor, int, int, torch.Generator], Iterator[Tensor]]  # labels, epochs, batch size, stream


def cut(order: Tensor, batch_size: int) -> Iterator[Tensor]:
    """Batches of an order; a last batch of one image is left out, since BatchNorm cannot train on it."""
    for index in order.split(batch_size):
        if len(index) > 1 or len(order) == 1 or batch_size == 1:
            yield index


def shuffled(labels: Tensor, epochs: int, batch_size: int, rng: torch.Generator) -> Iterator[Tensor]:
    """Every image once an epoch."""
    for _ in range(epochs):
        yield from cut(torch.randperm(len(labels), generator=rng), batch_size)


def balanced(budget: int, fresh: bool = True) -> Sampler:
    """`budget` batches a round at every site, whatever it holds: fewer of its images, or each several times.

    Drawn anew each round; with `fresh=False` always the same first images (what FedSB's authors run).
    """

    def sample(labels: Tensor, epochs: int, batch_size: int, rng: torch.Generator) -> Iterator[Tensor]:
        wanted, held = budget * batch_size, len(labels)
        if fresh:
            passes = -(-wanted // held)
            order = torch.cat([torch.randperm(held, generator=rng) for _ in range(passes)])[:wanted]
        else:
            order = torch.arange(wanted) % held
        yield from cut(order, batch_size)

    return sample
