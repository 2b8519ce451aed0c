"""AugMix: blended chains of simple operations on images in -1..1; a batch at a time, with draws for each image."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from .style import Paint

LEVELS, BITS = 256, 4
MAX_SEVERITY = 10.0  # at which magnitudes reach 1


def autocontrast(x: Tensor, magnitude: Tensor) -> Tensor:
    """Stretch each channel to the full range; a constant channel is unchanged."""
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return torch.where(high > low, 2 * (x - low) / (high - low).clamp(min=1e-6) - 1, x)


def equalize(x: Tensor, magnitude: Tensor) -> Tensor:
    """Equalize the histogram of each channel: every level becomes the share of pixels below it."""
    levels = in_bytes(x).long().flatten(2)
    counts = torch.zeros(*levels.shape[:2], LEVELS, device=x.device, dtype=x.dtype)
    counts.scatter_add_(2, levels, torch.ones_like(levels, dtype=x.dtype))
    below = counts.cumsum(2) - counts
    most = below.gather(2, levels.amax(2, keepdim=True))  # the number of pixels below the highest level
    spread = (2 * below.gather(2, levels) / most.clamp(min=1) - 1).unflatten(2, x.shape[2:])
    return torch.where((most > 0)[..., None], spread, x)


def posterize(x: Tensor, magnitude: Tensor) -> Tensor:
    """Reduce the number of levels: keep the highest 4 bits at a small magnitude, fewer at a large one."""
    bits = BITS - (BITS * magnitude.abs()).floor().clamp(max=BITS - 1)
    width = (LEVELS / 2**bits)[:, None, None, None]
    return (in_bytes(x) / width).floor() * width / (LEVELS - 1) * 2 - 1


def solarize(x: Tensor, magnitude: Tensor) -> Tensor:
    """Invert bright pixels: only the brightest at a small magnitude, all at a large one."""
    return torch.where(x >= 1 - 2 * magnitude.abs()[:, None, None, None], -x, x)


def in_bytes(x: Tensor) -> Tensor:
    """Convert -1..1 to whole levels 0..255."""
    return ((x.clamp(-1, 1) + 1) / 2 * (LEVELS - 1)).round()


def moved(x: Tensor, way: Tensor, magnitude: Tensor) -> Tensor:
    """Apply one geometric operation, `way` 0 to 4, to each image; pixels from outside are black.

    0: rotate by up to 30 degrees; 1, 2: shear along rows or columns; 3, 4: shift sideways or down by up to a third.
    """
    turn, lean_x, lean_y, right, down = (F.one_hot(way, 5) * magnitude[:, None]).unbind(1)
    angle, tall = turn * math.pi / 6, x.shape[2] / x.shape[3]
    above = (angle.cos(), (0.3 * lean_x - angle.sin()) * tall, 2 / 3 * right)
    under = ((0.3 * lean_y + angle.sin()) / tall, angle.cos(), 2 / 3 * down)
    matrix = torch.stack([torch.stack(above, 1), torch.stack(under, 1)], 1)
    grid = F.affine_grid(matrix, list(x.shape), align_corners=False)
    return F.grid_sample(x + 1, grid, align_corners=False) - 1


COLOURS = (autocontrast, equalize, posterize, solarize)
OPERATIONS = len(COLOURS) + 5


def operate(x: Tensor, which: Tensor, magnitude: Tensor) -> Tensor:
    """Apply to each image the operation drawn for it; -1: none."""
    done, which, magnitude = x.clone(), which.to(x.device), magnitude.to(x)
    for number, operation in enumerate(COLOURS):
        if len(index := (which == number).nonzero()[:, 0]):
            done[index] = operation(x[index], magnitude[index])
    if len(index := (which >= len(COLOURS)).nonzero()[:, 0]):
        done[index] = moved(x[index], which[index] - len(COLOURS), magnitude[index])
    return done


def aug_mix(width: int = 3, depth: int | None = None, severity: float = 3.0) -> Paint:
    """Blend `width` chains of `depth` operations (None: one to three) with each other and with the image."""

    def paint(x: Tensor, rng: torch.Generator) -> Tensor:
        shape = (width * len(x),)  # all chains at once
        lengths = torch.randint(1, 4, shape, generator=rng) if depth is None else torch.full(shape, depth)
        links = x.repeat(width, 1, 1, 1)
        for step in range(int(lengths.max())):
            which = torch.randint(OPERATIONS, shape, generator=rng)
            sign = 2.0 * torch.randint(2, shape, generator=rng) - 1
            level = 0.1 + (severity - 0.1) * torch.rand(shape, generator=rng)
            links = operate(links, which.where(step < lengths, -1), sign * level / MAX_SEVERITY)
        weights = -torch.rand(width, len(x), 1, 1, 1, generator=rng).clamp(min=1e-7).log()
        weights = (weights / weights.sum(0)).to(x)  # uniform on the simplex
        share = torch.rand(len(x), 1, 1, 1, generator=rng).to(x)
        styled: Tensor = (weights * links.unflatten(0, (width, -1))).sum(0)
        return share * styled + (1 - share) * x

    return paint
