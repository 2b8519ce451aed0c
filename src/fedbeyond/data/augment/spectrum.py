"""Amplitude spectra of images: amplitudes carry style, phases carry shape. Only a window of low frequencies is used.

A window is given as the share of the frequencies of each axis that it covers, around the lowest: 1 is all of them, 0 is
only the mean of each channel.

Images are in -1..1, but spectra are computed of pixels in 0..1. Only there is the lowest amplitude the brightness: in
-1..1 the mean of a dark image is negative, and its sign would be in the phase and not in the amplitude. Pixels in 0..1
and in 0..255 give the same exchanged images.
"""

import torch
from torch import Tensor

Place = tuple[Tensor, Tensor]  # rows and columns of a spectrum


def window(height: int, width: int, share: float) -> Place:
    """Return the rows and columns of the window in the spectrum of real images."""
    rows, columns = torch.fft.fftfreq(height, device="cpu"), torch.fft.rfftfreq(width, device="cpu")
    return (rows.abs() <= share / 2).nonzero(), (columns <= share / 2).nonzero()[:, 0]


def size(shape: tuple[int, ...], share: float) -> tuple[int, int, int]:
    """Return channels, rows and columns of the amplitudes in the window, for images of a shape."""
    channels, height, width = shape
    rows, columns = window(height, width, share)
    return channels, len(rows), len(columns)


def amplitudes(x: Tensor, share: float) -> Tensor:
    """Return the amplitudes of each image in the window."""
    rows, columns = window(x.shape[-2], x.shape[-1], share)
    amplitude, _ = decompose(x)
    return amplitude[..., rows, columns]


def blend(x: Tensor, given: Tensor, share: float, ratio: Tensor | float = 1.0) -> Tensor:
    """Blend a `ratio` of the amplitudes `given` into those in the window; phases are unchanged."""
    rows, columns = window(x.shape[-2], x.shape[-1], share)
    amplitude, phase = decompose(x)
    amplitude[..., rows, columns] = (1 - ratio) * amplitude[..., rows, columns] + ratio * given
    return compose(amplitude, phase, x.shape[-2], x.shape[-1])


def decompose(x: Tensor) -> tuple[Tensor, Tensor]:
    """Compute amplitudes and phases of images in -1..1, as pixels in 0..1."""
    spectrum = torch.fft.rfft2((x + 1) / 2)
    return spectrum.abs(), spectrum.angle()


def compose(amplitude: Tensor, phase: Tensor, height: int, width: int) -> Tensor:
    """Invert `decompose`: images in -1..1, not clipped."""
    x: Tensor = torch.fft.irfft2(torch.polar(amplitude, phase), s=(height, width))
    return x.mul_(2).sub_(1).contiguous(memory_format=torch.channels_last)


def clipped(x: Tensor, before: Tensor) -> Tensor:
    """Clip each image to -1..1; one that exceeded this range before its amplitudes changed keeps its own range."""
    lowest, highest = before.amin((1, 2, 3), keepdim=True), before.amax((1, 2, 3), keepdim=True)
    return x.clamp(lowest.clamp(max=-1), highest.clamp(min=1))
