"""The filters of a scattering transform: oriented Morlet wavelets at dyadic scales, and a Gaussian that averages.

With u a pixel, rotated by the angle t, s = 4 / angles the slant of the envelope, at scale 2^j::

    gabor(u)  = s / (2 pi sigma^2) exp(-(u_1^2 + s^2 u_2^2) / (2 sigma^2)) exp(i xi u_1)
    morlet    = gabor - K envelope, K such that the sum over pixels is 0      sigma = 0.8 2^j      xi = (3/4) pi / 2^j
    average   = exp(-|u|^2 / (2 sigma^2)), of sum 1                           sigma = 0.8 2^(J - 1)

on a torus as large as the padded image.

Reference:
    Bruna and Mallat, "Invariant Scattering Convolution Networks", IEEE PAMI 2013; the constants are those of Andreux et
    al., "Kymatio", JMLR 2020, written anew from the formulas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

__all__ = ["Filters"]

_SPREAD: Final = 0.8  # of an envelope, in its scale
_CENTER: Final = 3 * math.pi / 4  # frequency of the finest wavelet
_WRAPS: Final = range(-2, 3)  # copies of the torus that a filter is summed over


@dataclass(frozen=True, slots=True, eq=False)
class Filters:
    """Wavelets as their Fourier transforms (real), and the average as one matrix a direction.

    Edge cases:
        wavelets     (scales, angles, height, width), the torus's Fourier transform of a Morlet wavelet, which is real
        rows, columns  (outputs, height), (outputs, width): the average, read at every 2^scales-th pixel
    """

    wavelets: Tensor
    rows: Tensor
    columns: Tensor

    @classmethod
    def of(cls, shape: tuple[int, int], margin: int, scales: int, angles: int) -> Filters:
        """Filters for images of ``shape`` with ``margin`` more pixels on every side, in float64."""
        padded = (shape[0] + 2 * margin, shape[1] + 2 * margin)
        waves = [[morlet(padded, j, angle, angles) for angle in range(angles)] for j in range(scales)]
        spectra = torch.stack([torch.stack([torch.fft.fft2(wave).real for wave in row]) for row in waves])
        sigma = _SPREAD * 2 ** (scales - 1)
        rows, columns = (averages(n, margin, 2**scales, sigma) for n in shape)
        return cls(spectra, rows, columns)

    def to(self, device: torch.device, dtype: torch.dtype) -> Filters:
        """The same filters elsewhere, in another precision."""
        return Filters(*(part.to(device, dtype) for part in (self.wavelets, self.rows, self.columns)))


def morlet(padded: tuple[int, int], scale: int, angle: int, angles: int) -> Tensor:
    """One wavelet on the torus, (height, width) complex128, its middle at pixel (0, 0)."""
    sigma, slant, turn = _SPREAD * 2**scale, 4 / angles, math.pi * angle / angles
    height, width = padded
    total, envelope = torch.zeros(padded, dtype=torch.complex128), torch.zeros(padded, dtype=torch.float64)
    for down in _WRAPS:
        for right in _WRAPS:
            y = torch.arange(height, dtype=torch.float64)[:, None] + down * height
            x = torch.arange(width, dtype=torch.float64)[None, :] + right * width
            along, across = x * math.cos(turn) + y * math.sin(turn), y * math.cos(turn) - x * math.sin(turn)
            bell = torch.exp(-(along.square() + (slant * across).square()) / (2 * sigma**2))
            envelope += bell
            total += bell * torch.exp(1j * (_CENTER / 2**scale) * along)
    balanced: Tensor = total - envelope * (total.sum() / envelope.sum())
    scaled: Tensor = balanced * (slant / (2 * math.pi * sigma**2))
    return scaled


def averages(size: int, margin: int, stride: int, sigma: float) -> Tensor:
    """The Gaussian average at every ``stride``-th pixel of ``size``: rows of weights of the padded pixels, of sum 1."""
    padded = size + 2 * margin
    places = margin + torch.arange(0, size - stride + 1, stride, dtype=torch.float64)[:, None]
    apart = torch.arange(padded, dtype=torch.float64)[None, :] - places
    bells = torch.stack([torch.exp(-(apart + wrap * padded).square() / (2 * sigma**2)) for wrap in _WRAPS]).sum(0)
    return bells / bells.sum(1, keepdim=True)
