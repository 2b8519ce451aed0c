"""Amplitudes of images' spectra: style, where phases are shape. All that is sent or changed is a window of low ones.

A window is the share of the frequencies of each axis that it covers, around the lowest: 1 is all of them, 0 only the
mean of each channel.
"""

import torch
from torch import Tensor

Place = tuple[Tensor, Tensor]  # rows and columns of a spectrum


def window(height: int, width: int, share: float) -> Place:
    """Where in the spectrum of real images the window is."""
    rows, columns = torch.fft.fftfreq(height, device="cpu"), torch.fft.rfftfreq(width, device="cpu")
    return (rows.abs() <= share / 2).nonzero(), (columns <= share / 2).nonzero()[:, 0]


def size(shape: tuple[int, ...], share: float) -> tuple[int, int, int]:
    """Channels, rows and columns of the amplitudes of images of this shape, in the window."""
    channels, height, width = shape
    rows, columns = window(height, width, share)
    return channels, len(rows), len(columns)


def amplitudes(x: Tensor, share: float) -> Tensor:
    """Those of each image that are in the window."""
    rows, columns = window(x.shape[-2], x.shape[-1], share)
    whole: Tensor = torch.fft.rfft2(x).abs()
    return whole[..., rows, columns]


def blend(x: Tensor, given: Tensor, share: float, ratio: Tensor | float = 1.0) -> Tensor:
    """The images with `ratio` of the amplitudes in the window taken from `given`; their phases stay."""
    rows, columns = window(x.shape[-2], x.shape[-1], share)
    spectrum = torch.fft.rfft2(x)
    amplitude, phase = spectrum.abs(), spectrum.angle()
    amplitude[..., rows, columns] = (1 - ratio) * amplitude[..., rows, columns] + ratio * given
    blended: Tensor = torch.fft.irfft2(torch.polar(amplitude, phase), s=x.shape[-2:])
    return blended.contiguous(memory_format=torch.channels_last)
