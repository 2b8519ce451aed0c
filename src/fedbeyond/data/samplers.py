"""Which images a site sees in a round, and in which order: batches of indices from the site's random stream."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

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
