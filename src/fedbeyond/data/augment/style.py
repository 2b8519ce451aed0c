"""Augmentations that change the style of images: random convolutions and mixed amplitudes."""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add

import torch
from torch import Tensor
from torch.nn import functional as F

from ...batch import Augment
from .spectrum import clipped, compose, decompose

Paint = Callable[[Tensor, torch.Generator], Tensor]  # images -> the same images in another style


def repaint(paint: Paint) -> Augment:
    """Return an augmentation that changes the style of every image of a batch, including views."""
    return lambda batch, rng: batch._replace(x=paint(batch.x, rng), views=tuple(paint(v, rng) for v in batch.views))


def views(paint: Paint, count: int) -> Augment:
    """Return an augmentation that adds `count` views of a batch's images in other styles."""
    return lambda batch, rng: batch._replace(views=(*batch.views, *(paint(batch.x, rng) for _ in range(count))))


def rand_conv(
    sizes: Sequence[int] = (1, 3, 5, 7), repeats: int = 1, chains: int = 1, mix: bool = True, level: bool = False
) -> Paint:
    """Apply convolutions with random weights: other colours and textures, the same shapes.

    In a chain, a kernel of one of several sizes is drawn for the batch and applied 1 to `repeats` times. The results of
    all chains are blended by random weights. `mix` blends the result with the images by a random share, as AugMix
    does; `level` restores the mean and standard deviation of each channel.
    """

    def convolved(x: Tensor, rng: torch.Generator) -> Tensor:
        channels = x.shape[1]
        size = sizes[int(torch.randint(len(sizes), (), generator=rng))]
        kernel = torch.randn(channels, channels, size, size, generator=rng) / (channels * size**2) ** 0.5
        kernel = kernel.to(x)
        for _ in range(1 + int(torch.randint(repeats, (), generator=rng))):
            x = F.conv2d(x, kernel, padding=size // 2)
        return x

    def paint(x: Tensor, rng: torch.Generator) -> Tensor:
        weights = -torch.rand(chains, generator=rng).clamp(min=1e-7).log()  # normalised: uniform on the simplex
        styled = reduce(add, [weight * convolved(x, rng) for weight in (weights / weights.sum()).tolist()])
        if mix:
            styled = torch.lerp(x, styled, float(torch.rand((), generator=rng)))
        return levelled(styled, x) if level else styled

    return paint


def levelled(styled: Tensor, x: Tensor) -> Tensor:
    """Give each channel of `styled` the mean and standard deviation that it has in `x`."""
    count, channels, high, wide = x.shape

    def centred(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # reduce whole rows of channels-last pixels: reducing single channels reads memory one number at a time
        rows = images.movedim(1, 3).reshape(count * high, wide * channels)
        mean = rows.mean(0).view(wide, channels).mean(0).repeat(wide)
        moved = rows - mean
        variance = moved.square().sum(0).view(wide, channels).sum(0) / (count * high * wide - 1)
        return moved, mean, variance.sqrt().repeat(wide)

    _, mean, spread = centred(x)
    moved, _, styled_spread = centred(styled)
    return moved.mul_(spread / (styled_spread + 1e-6)).add_(mean).view(count, high, wide, channels).movedim(3, 1)


def amplitude_mix(strength: float = 1.0, chance: float = 1.0) -> Paint:
    """Blend the amplitudes of each image's spectrum with those of another image of the batch; phases are unchanged."""

    def paint(x: Tensor, rng: torch.Generator) -> Tensor:
        partner = torch.randperm(len(x), generator=rng)
        share = strength * torch.rand(len(x), 1, 1, 1, generator=rng)
        if float(torch.rand((), generator=rng)) >= chance:
            return x
        share, (amplitude, phase) = share.to(x), decompose(x)
        amplitude = (1 - share) * amplitude + share * amplitude[partner.to(x.device)]
        return clipped(compose(amplitude, phase, x.shape[-2], x.shape[-1]), x)

    return paint
