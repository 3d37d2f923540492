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
import torch.nn.functional as F
from torch import Tensor

from dpilot.engine import precision
from dpilot.engine.base import accumulator
from dpilot.engine.layers.base import Dense, Use


@dataclass(frozen=True, slots=True)
class ByEntry:
    """Gradients of a kernel with its entries first: dense values (n, entries, O, C), summed into (O, C, *kernel)."""

    values: Dense
    kernel: tuple[int, ...]

    def measure(self) -> tuple[Tensor, Use]:
        return self.values.measure()[0], self

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self._turned(self.values.weighted_sum(weights).unsqueeze(0))[0]

    def gradients(self, start: int, stop: int) -> Tensor:
        return self._turned(self.values.gradients(start, stop))

    def magnitude(self) -> Tensor:
        return self.values.magnitude()

    def keep(self, finite: Tensor) -> ByEntry:
        return ByEntry(self.values.keep(finite), self.kernel)

    def _turned(self, values: Tensor) -> Tensor:
        """(n, entries, O, C) -> (n, O, C, *kernel)."""
        return values.permute(0, 2, 3, 1).reshape(values.shape[0], *values.shape[2:], *self.kernel)


def by_entry(
    inputs: Tensor, errors: Tensor, kernel: tuple[int, ...], padding: Sequence[int], dilation: Sequence[int]
) -> ByEntry:
    """Every sample's gradient, from inputs (n, C, *space) and errors (n, O, *positions)."""
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    a = F.pad(inputs, [width for side in reversed(padding) for width in (side, side)])
    e = F.pad(errors, [width for beyond in reversed(reach) for width in (0, beyond)])
    grid = a.shape[2:]
    a, e = (t.movedim(1, -1).flatten(1, -2) for t in (a, e))
    steps = [d * math.prod(grid[j + 1 :]) for j, d in enumerate(dilation)]
    offsets = [sum(i * s for i, s in zip(at, steps, strict=True)) for at in product(*map(range, kernel))]
    values = a.new_empty(a.shape[0], len(offsets), e.shape[2], a.shape[2], dtype=accumulator(a))
    for j, offset in enumerate(offsets):
        left, right = e[:, : e.shape[1] - offset].mT, a[:, offset:]
        if a.dtype == torch.bfloat16:
            values[:, j] = precision.bmm(left, right)
        else:
            torch.bmm(left, right, out=values[:, j])
    return ByEntry(Dense(values), kernel)
