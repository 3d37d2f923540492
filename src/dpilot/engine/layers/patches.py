"""Inner products of the patches a kernel sees, from those of pixels: nothing is unfolded.

Two patches meet entry by entry, so with P the inner products of all pixels of the padded image

    <patch s, patch t> = sum over kernel entries k of P[s stride + k dilation, t stride + k dilation]
"""

from __future__ import annotations

import math

from torch import Tensor

from dpilot.engine import precision
from dpilot.engine.layers.geometry import Geometry
from dpilot.engine.layers.offsets import on_grid


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
