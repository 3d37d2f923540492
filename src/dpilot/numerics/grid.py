"""Sums of vectors that were each rounded to a public grid: whole numbers, added exactly, in whatever order.

What a record adds is then a function of that record alone, to the last bit, and no rounding of a sum carries another
(docs/proofs/hardened.md). A vector that is formed is rounded entry by entry. A product of two vectors need not be
formed: its factors are rounded instead, each to a grid of its own, and their product lies on the product of both::

    g_i = w_i e_i a_i^T     A_i = round(2^-k a_i), E_i = round(2^k w_i e_i),  2^(k-1) <= |a_i| < 2^k     sum = E^T A
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from dpilot.numerics import precision

LOST: Final = 2.0**-10
"""The part of the bound by which the roundings of factors may move a record, all products together."""
_AIMED: Final = LOST * (1 - 2.0**-4)  # what rounding in float32 and float64 adds is far below the rest
_EXACT: Final = 2.0**53
_FORMED: Final = 1 << 18  # numbers rounded at a time: they stay in cache


@dataclass(frozen=True, slots=True)
class Grid:
    """Multiples of ``size``, a power of two, for vectors that are no longer than ``bound``.

    ``products`` is how many products may share ``LOST``, ``records`` how many records a sum must hold exactly.
    """

    size: float
    bound: float
    products: int = 1
    records: int = 1 << 12

    def round(self, values: Tensor) -> Tensor:
        """The nearest multiples, in float64; of complex numbers those of both parts."""
        if values.is_complex():
            return torch.view_as_complex(self.round(torch.view_as_real(values.resolve_conj())))
        return torch.round(values.double() / self.size) * self.size

    def factors(self, inputs: int, errors: int) -> tuple[float, float] | None:
        """The grids of inputs in a ball of 1 and of errors, for so many numbers; None without room for them.

        With h and k these: h sqrt(d) / 2 times 2 bound, and k sqrt(p) / 2, are each half of what a product may lose.
        """
        mine = _AIMED / math.sqrt(self.products)
        fine, coarse = _power_below(mine / (2 * math.sqrt(inputs))), _power_below(mine * self.bound / math.sqrt(errors))
        return (fine, coarse) if self.records * self.bound * (1 + LOST) <= _EXACT * fine * coarse else None


def _power_below(value: float) -> float:
    return math.ldexp(1.0, math.frexp(value)[1] - 1)


def sum_rows(values: Tensor, weights: Tensor, grid: Grid) -> Tensor:
    """Sum over i of w_i v_i, (n, *shape), each rounded to the grid, in float64.

    A weight that is no number in the type of ``values`` once it is divided by the grid is 0: its own record's affair.
    """
    n, shape = values.shape[0], values.shape[1:]
    flat, total = values.reshape(n, -1), values.new_zeros(shape.numel(), dtype=torch.float64)
    scale = (weights.double() / grid.size).to(flat.dtype)
    scale = torch.where(torch.isfinite(scale), scale, 0.0)[:, None]
    width = max(1, _FORMED // max(n, 1))
    for start in range(0, flat.shape[1], width):
        few = slice(start, start + width)
        total[few] = (flat[:, few] * scale).round_().double().sum(0)  # whole numbers, of which sums have no order
    return total.mul_(grid.size).view(shape)


def sum_products(inputs: Tensor, errors: Tensor, weights: Tensor, grids: tuple[float, float]) -> Tensor:
    """Sum over i of w_i e_i a_i^T from inputs (n, d) and errors (n, p), of rounded factors: (p, d), in float64."""
    fine, coarse = grids
    a, e = inputs.double(), errors.double() * weights.double()[:, None]
    power = torch.exp2(torch.frexp(torch.linalg.vector_norm(a, dim=1))[1].double())[:, None]
    a, e = (a / power / fine).round_(), (e * power / coarse).round_()
    taken = weights != 0  # whole numbers add up to the same without the others
    with precision.use_full_precision():
        return torch.mm(e[taken].T, a[taken]).mul_(fine * coarse)
