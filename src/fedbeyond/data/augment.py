"""Augmentations: functions from a batch and the site's random stream to a batch, on the batch's device."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """Images with their labels, and perhaps the same images in further styles."""

    x: Tensor
    y: Tensor
    views: tuple[Tensor, ...] = ()


Augment = Callable[[Batch, torch.Generator], Batch]


def plain(batch: Batch, rng: torch.Generator) -> Batch:
    """The batch as it is."""
    return batch
