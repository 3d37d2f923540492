"""The scattering transform of images, by Fourier transforms, a few images at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import group_norm, normalize, pad

from dpilot import _validate
from dpilot.numerics.threads import map_blocks
from dpilot.transfer.features import Features, chunk_rows, extract_rows
from dpilot.transfer.pixels import as_pixels, scale_pixels
from dpilot.transfer.scattering.filters import Filters

__all__ = ["Scattering", "scatter", "scattered"]

_AT_ONCE: Final = 16  # images on a CPU: what they take stays in a cache
_IN_A_THREAD: Final = 64  # images that one thread works on, in such blocks
_ACCELERATED: Final = 512  # on an accelerator: enough work to start its kernels for


@dataclass(frozen=True, slots=True)
class Scattering:
    """Averages of an image, of its wavelet moduli, and of the wavelet moduli of these.

    Formula::

        S0 = x * phi        S1 = |x * psi_a| * phi        S2 = ||x * psi_a| * psi_b| * phi, b coarser than a

    read at every 2^scales-th pixel: 1 + scales angles + angles^2 scales (scales - 1) / 2 channels an input channel, in
    this order, a and b each running over scales, then angles.

    Guarantee:
        An image's features depend on that image alone, and the filters on nothing but the shape: no data was used.
        One image more moves no other's features, not by a rounding either: they are worked on in blocks of one size.

    Edge cases:
        Images are continued by reflection, 2^scales pixels on every side.
        Moduli are roots of sums of squares: of values beyond 1e19 (in float32) they are not finite.

    Example:
        >>> Scattering((28, 28))(torch.ones(2, 1, 28, 28)).shape
        torch.Size([2, 81, 7, 7])

    Reference:
        Bruna and Mallat, IEEE PAMI 2013.
    """

    shape: tuple[int, int] = (28, 28)
    scales: int = 2
    angles: int = 8
    _filters: Filters = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        scales, angles = _validate.count(scales=self.scales), _validate.count(angles=self.angles)
        for name, size in zip(("height", "width"), self.shape, strict=True):
            if size % 2**scales or size <= 2**scales:
                _validate.refuse(name, size, f"a multiple of {2**scales}, above it", "Pad or crop the images.")
        object.__setattr__(self, "_filters", Filters.of(self.shape, 2**scales, scales, angles))

    @property
    def channels(self) -> int:
        """Output channels an input channel."""
        return 1 + self.scales * self.angles + self.angles**2 * self.scales * (self.scales - 1) // 2

    def __call__(self, images: Tensor) -> Tensor:
        """Images (n, channels, height, width) to (n, channels * self.channels, height / 2^scales, width / 2^scales)."""
        if images.ndim != 4 or tuple(images.shape[2:]) != self.shape:
            height, width = self.shape
            _validate.refuse("the shape of images", tuple(images.shape), f"(n, channels, {height}, {width})")
        n, colours = images.shape[:2]
        flat = (images if images.dtype == torch.float64 else images.float()).flatten(0, 1)
        filters = self._filters.to(flat.device, flat.dtype)
        whole = torch.cat([self._some(filters, block) for block in blocks(flat)])[: len(flat)]
        return whole.reshape(n, colours * self.channels, *whole.shape[2:])

    def _some(self, filters: Filters, images: Tensor) -> Tensor:
        padded = pad(images[:, None], (2**self.scales,) * 4, mode="reflect")
        spectrum, found = torch.fft.fft2(padded), [average(filters, padded)]
        deeper: list[Tensor] = []
        for scale in range(self.scales):
            moduli = modulus(torch.fft.ifft2(spectrum * filters.wavelets[scale]))
            found.append(average(filters, moduli))
            deeper += self._second(filters, moduli, scale)
        return torch.cat([*found, *deeper], 1)

    def _second(self, filters: Filters, moduli: Tensor, scale: int) -> Iterator[Tensor]:
        for angle in range(self.angles) if scale + 1 < self.scales else ():
            spectrum = torch.fft.fft2(moduli[:, angle, None])
            for coarser in range(scale + 1, self.scales):
                yield average(filters, modulus(torch.fft.ifft2(spectrum * filters.wavelets[coarser])))


def blocks(images: Tensor) -> Iterator[Tensor]:
    """Images (n, height, width) that are worked on together: blocks of one size, the last filled up with zeros."""
    size = _AT_ONCE if images.device.type == "cpu" else _ACCELERATED
    return (pad(part, (0, 0, 0, 0, 0, size - len(part))) for part in chunk_rows(images, size))


def modulus(values: Tensor) -> Tensor:
    """|z| of complex numbers; ``abs`` is two to three times slower, as it guards against overflow."""
    return values.real.square().addcmul_(values.imag, values.imag).sqrt_()


def average(filters: Filters, maps: Tensor) -> Tensor:
    """Maps on the torus averaged at the output pixels: (..., height, width) -> (..., outputs down, outputs across)."""
    return (filters.rows @ maps) @ filters.columns.T


def scattered(
    images: Any, labels: Any, classes: int, *, groups: int = 27, batch: int = 512, white: float | None = None
) -> Features:
    """Scattering features of images, normalised for a linear head (``scatter``), with their labels.

    Example:
        >>> scattered(torch.zeros(3, 28, 28, dtype=torch.uint8), [0, 1, 1], classes=2).values.shape
        torch.Size([3, 3969])
    """
    return Features.of(scatter(images, groups=groups, batch=batch, white=white), labels, classes)


def scatter(
    images: Any,
    *,
    groups: int = 27,
    batch: int = 512,
    white: float | None = None,
    transform: Scattering | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Scattering features of images, (n, d) on the CPU, normalised for a linear head: GroupNorm, then unit rows.

    ``images`` are (n, height, width) or (n, channels, height, width), bytes or floats from 0 to 1; ``white`` declares
    which (255 or 1), else each image tells by its own pixels (``transfer.pixels``).

    Guarantee:
        Each record on its own, and no data behind the filters: nothing to pay.

    Reference:
        Tramer and Boneh, "Differentially Private Learning Needs Better Features (or Much More Data)", ICLR 2021.
    """
    pictures = as_pixels(images)
    pictures = pictures[:, None] if pictures.ndim == 3 else pictures
    fixed = transform or Scattering((int(pictures.shape[-2]), int(pictures.shape[-1])))
    groups = _validate.count(groups=groups)
    if pictures.shape[1] * fixed.channels % groups:
        _validate.refuse("groups", groups, f"a divisor of the {pictures.shape[1] * fixed.channels} channels")

    def features(some: Tensor) -> Tensor:
        return normalize(group_norm(fixed(scale_pixels(some, white)), groups).flatten(1))

    if device is not None and torch.device(device).type != "cpu":
        return extract_rows(features, pictures, batch, device)
    few = min(batch, _IN_A_THREAD)
    parts = chunk_rows(pictures, few)
    return torch.cat(map_blocks(lambda part: extract_rows(features, part, few, device), parts))
