"""Per-sample gradients of a convolution without unfolding: one product for each entry of the kernel.

Lay the padded input out as tokens, row after row, and the output gradient on the same grid, zero where no output lies.
Then a kernel entry sees, for every output, the token a fixed number of places further on:

    g_i[:, :, k] = sum over tokens l of e_i[l] a_i[l + offset(k)]^T

Nothing is copied kernel-fold, as unfolding does. It needs a stride of one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from dpilot.engine.base import accumulator
from dpilot.engine.layers.base import Dense, Use
from dpilot.engine.layers.conv_geometry import Geometry, even_parts
from dpilot.numerics import kernels, precision

LAID = 1 << 26
"""Numbers laid out as tokens at a time."""


@dataclass(frozen=True, slots=True)
class ByEntry:
    """Gradients of a kernel with its entries first: dense values (n, entries, O, C), summed into (O, C, *kernel)."""

    values: Dense
    kernel: tuple[int, ...]

    def measure(self) -> tuple[Tensor, Use]:
        return self.values.measure()[0], self

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self._to_kernel_layout(self.values.weighted_sum(weights).unsqueeze(0))[0]

    def gradients(self, start: int, stop: int) -> Tensor:
        return self._to_kernel_layout(self.values.gradients(start, stop))

    def magnitude(self) -> Tensor:
        return self.values.magnitude()

    def keep(self, finite: Tensor) -> ByEntry:
        return ByEntry(self.values.keep(finite), self.kernel)

    def _to_kernel_layout(self, values: Tensor) -> Tensor:
        """(n, entries, O, C) -> (n, O, C, *kernel)."""
        return values.permute(0, 2, 3, 1).reshape(values.shape[0], *values.shape[2:], *self.kernel)


def by_entry(
    inputs: Tensor, errors: Tensor, kernel: tuple[int, ...], padding: Sequence[int], dilation: Sequence[int]
) -> ByEntry:
    """Every sample's gradient, from inputs (n, C, *space) and errors (n, O, *positions)."""
    grid = [size + 2 * side for size, side in zip(inputs.shape[2:], padding, strict=True)]
    steps = [d * math.prod(grid[j + 1 :]) for j, d in enumerate(dilation)]
    offsets = [sum(i * s for i, s in zip(at, steps, strict=True)) for at in product(*map(range, kernel))]
    n, channels, width = inputs.shape[0], inputs.shape[1], errors.shape[1]
    values = inputs.new_empty(n, len(offsets), width, channels, dtype=accumulator(inputs))
    for start, stop in even_parts(0, n, math.prod(grid) * (channels + width), LAID):
        rows = slice(start, stop)
        a, e = on_grid(inputs[rows], grid, padding), on_grid(errors[rows], grid, [0] * len(grid))
        for j, offset in enumerate(offsets):
            left, right = e[:, : e.shape[1] - offset].mT, a[:, offset:]
            if a.dtype == torch.bfloat16:
                values[rows, j] = precision.bmm(left, right)
            else:
                torch.bmm(left, right, out=values[rows, j])
    return ByEntry(Dense(values), kernel)


def on_grid(values: Tensor, grid: Sequence[int], start: Sequence[int]) -> Tensor:
    """(n, C, *size) laid into zeros of the grid's size, as tokens (n, places, C)."""
    made = kernels.on_grid(values, grid, start)
    if made is not None:
        return made
    n, channels, *size = values.shape
    laid = values.new_zeros(n, *grid, channels)
    inside = tuple(slice(at, at + length) for at, length in zip(start, size, strict=True))
    laid[:, *inside] = values.movedim(1, -1)
    return laid.flatten(1, -2)


def worth_it(inputs: Tensor, geometry: Geometry, positions: tuple[int, ...]) -> bool:
    """Whether the pixels have fewer inner products to form than the patches have products: places^2 <= K T^2."""
    places = math.prod(pad_sizes(inputs, geometry))
    return places * places <= math.prod(geometry.kernel) * math.prod(positions) ** 2


def pad_sizes(inputs: Tensor, geometry: Geometry) -> list[int]:
    """The size of the padded image."""
    return [size + 2 * side for size, side in zip(inputs.shape[2:], geometry.padding, strict=True)]


def patch_gram(inputs: Tensor, geometry: Geometry, positions: tuple[int, ...]) -> Tensor:
    """Gram matrices (n, T, T) of the patches of images (n, C, *space), for a kernel without groups."""
    grid = pad_sizes(inputs, geometry)
    pixels = precision.gram(on_grid(inputs, grid, geometry.padding))
    across = [math.prod(grid[j + 1 :]) for j in range(len(grid))]
    down, right = pixels.stride(1), pixels.stride(2)
    entries = [d * a * (down + right) for d, a in zip(geometry.dilation, across, strict=True)]
    moves = [s * a for s, a in zip(geometry.stride, across, strict=True)]
    steps = [m * down for m in moves] + [m * right for m in moves]
    seen = pixels.as_strided(
        (pixels.shape[0], *geometry.kernel, *positions, *positions), (pixels.stride(0), *entries, *steps)
    )
    tokens = math.prod(positions)
    return seen.sum(tuple(range(1, 1 + len(grid)))).view(-1, tokens, tokens)
