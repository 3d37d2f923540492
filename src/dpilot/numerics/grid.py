"""Sums of vectors that were each rounded to a public grid: whole numbers, added exactly, in whatever order.

What a record adds is then a function of that record alone, to the last bit, and no rounding of a sum carries another
(docs/proofs/hardened.md). A vector that is formed is rounded entry by entry. A product of two vectors need not be
formed: its factors are rounded instead, each to a grid of its own, and their product lies on the product of both::

    g_i = w_i e_i a_i^T     A_i = round(2^-k a_i), E_i = round(2^k w_i e_i),  2^(k-1) <= |a_i| < 2^k     sum = E^T A

Networks round to the nearest multiples, and their bound has room for it. Linear models and heads cut towards zero:
|A_i| <= 2^-k |a_i| and |E_i| <= 2^k w_i |e_i| number by number, so no record grows and the bound stays as it is.

One product adds up so few records that no whole number reaches 2^53. Sums of many are kept in two limbs, a coarse one
and what is left of it, each of which stays below 2^53 of its own unit: exact for 2^27 records and more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from dpilot._arrays import Floats

if TYPE_CHECKING:
    from torch import Tensor

LOST: Final = 2.0**-10
"""The part of the bound by which the roundings of factors may move a record, all products together."""
_AIMED: Final = LOST * (1 - 2.0**-4)  # what rounding in float32 and float64 adds is far below the rest
_EXACT: Final = 2.0**53
_FORMED: Final = 1 << 18  # numbers rounded at a time: they stay in cache
_FINE: Final = 2.0**-21  # of the power of two above a record's length: the grid of its features
_PULL: Final = 2.0**-20  # of the bound, over that power: the grid of what a record multiplies its features by
UNIT: Final = _FINE * _PULL
"""Of the bound: what gradients of linear models are multiples of."""
RECORDS: Final = 1 << 12
"""How many of them one product may add up: 2^12 <= 2^53 UNIT."""
_SHORTEST: Final = 2.0**-400  # what is shorter is nothing: the inverse of its grid could not be held
_GRAM_ROWS: Final = 1 << 11  # numbers of a row are below 2^21 of its grid, so their products below 2^42: 2^53 in all
_GRAM_FINE: Final = 2.0**-20  # of the power of two below the radius
_CARRY: Final = 2.0**24  # units of the lower limb in one of the upper


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
        import torch

        if values.is_complex():
            return torch.view_as_complex(self.round(torch.view_as_real(values.resolve_conj())))
        return torch.round(values.double() / self.size) * self.size

    def factors(self, inputs: int, errors: int) -> tuple[float, float] | None:
        """The grids of inputs in a ball of 1 and of errors, for so many numbers; None without room for them.

        With h and k these: h sqrt(d) / 2 times 2 bound, and k sqrt(p) / 2, are each half of what a product may lose.
        """
        mine = _AIMED / math.sqrt(self.products)
        fine, coarse = power_below(mine / (2 * math.sqrt(inputs))), power_below(mine * self.bound / math.sqrt(errors))
        return (fine, coarse) if self.records * self.bound * (1 + LOST) <= _EXACT * fine * coarse else None


def cut(values: Floats, grid: Any) -> Floats:
    """The nearest multiples of ``grid`` towards zero: no number grows, and so no norm.

    >>> cut(np.array([0.3, -0.3, 1e-9]), 0.25).tolist()
    [0.25, -0.25, 0.0]
    """
    return np.asarray(np.trunc(values / grid) * grid)


def cut_rows(rows: Floats) -> Floats:
    """Each row on a grid that its own length gives, in place: 2^-21 of the power of two above the length.

    Guarantee:
        No number grows. A row so short (2^-400) or so long (its square overflows) that it has no such grid is zero.
    """
    lengths = row_lengths(rows)
    usable = np.isfinite(lengths) & (lengths >= _SHORTEST)
    grid = np.ldexp(_FINE, _exponents(np.where(usable, lengths, 1.0)))[:, None]
    np.divide(rows, grid, out=rows)
    np.trunc(rows, out=rows)
    np.multiply(rows, grid, out=rows)
    rows[~usable] = 0.0
    return rows


def cut_pull(pull: Floats, lengths: Floats) -> Floats:
    """What rows of these ``lengths`` are multiplied by (n, outputs), cut so that each product is a multiple of UNIT."""
    return cut(pull, np.ldexp(_PULL, -_exponents(lengths))[:, None])


def row_lengths(rows: Floats) -> Floats:
    """Each row's length, to the last bit its own: rows are one after another in memory, or all but their last number.

    ``tests/attacks/test_linear_grid.py`` compares a row among others with the same row alone.
    """
    return np.abs(rows[:, 0]) if rows.shape[1] == 1 else np.sqrt(np.einsum("ij,ij->i", rows, rows))


def _exponents(lengths: Floats) -> NDArray[Any]:
    """k with 2^(k-1) <= length < 2^k."""
    return np.frexp(lengths)[1]


@np.errstate(all="ignore")  # whatever the caller set: the numbers of a row may underflow
def gram_in_limbs(rows: Floats, weights: Floats, radius: float) -> Floats:
    """Sum of w^2 z z^T over ``rows`` z with weights w, w z cut to a grid of the radius: two limbs (2, d, d).

    For rows with |w z| <= radius, and whole units of rows with |sum of w^2 z z^T|_F <= radius^2: their diagonals, and
    so all partial sums of products, are below radius^2.
    """
    fine = power_below(radius) * _GRAM_FINE
    limbs = np.zeros((2, rows.shape[1], rows.shape[1]))
    for start in range(0, len(rows), _GRAM_ROWS):
        few = rows[start : start + _GRAM_ROWS] * (weights[start : start + _GRAM_ROWS, None] / fine)
        np.trunc(few, out=few)
        add_to_limbs(limbs, (few.T @ few) * fine**2, fine**2)
    return limbs


def add_to_limbs(limbs: Any, values: Any, unit: Any) -> Any:
    """Limbs (2, *shape) with multiples of ``unit`` added in place: their nearest multiples of 2^24 units to the first,
    what is left to the second. The same in any order, to the last bit; limbs themselves add up likewise."""
    high = (values / (_CARRY * unit)).round() * (_CARRY * unit)
    limbs[0] += high
    limbs[1] += values - high
    return limbs


@np.errstate(all="ignore")  # whatever the caller set: the neighbour of 0 is denormal
def join_limbs(limbs: Floats) -> Floats:
    """The sum of both limbs, rounded to odd: the nearest float whose last bit is 1, unless the sum is a float itself.

    Such a number lies on the same side of every point with fewer bits as the sum: rounding it to the grid of a release
    gives what rounding the sum itself would (Boldo and Melquiond 2008). To the nearest, and rounded again, it could
    move by more than half of the grid. That is so for sums below 2^50 points of that grid.

    >>> limbs = np.array([[1.0, 1.0, 1.0], [2.0**-60, -(2.0**-60), 0.0]])
    >>> [float(each).hex() for each in join_limbs(limbs)]
    ['0x1.0000000000001p+0', '0x1.fffffffffffffp-1', '0x1.0000000000000p+0']
    """
    high, low = limbs
    total = np.asarray(high + low)
    part = total - high
    lost = (high - (total - part)) + (low - part)  # exact: Knuth's two-sum
    even = total.view(np.int64) & 1 == 0
    return np.where((lost != 0) & even, np.nextafter(total, np.copysign(np.inf, lost)), total)


def power_below(value: float) -> float:
    """The largest power of two that is no larger."""
    return math.ldexp(1.0, math.frexp(value)[1] - 1)


def sum_rows(values: Tensor, weights: Tensor, grid: Grid) -> Tensor:
    """Sum over i of w_i v_i, (n, *shape), each rounded to the grid, in float64.

    A weight that is no number in the type of ``values`` once it is divided by the grid is 0: its own record's affair.
    """
    import torch

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
    import torch

    from dpilot.numerics import precision

    fine, coarse = grids
    a, e = inputs.double(), errors.double() * weights.double()[:, None]
    power = torch.exp2(torch.frexp(torch.linalg.vector_norm(a, dim=1))[1].double())[:, None]
    a, e = (a / power / fine).round_(), (e * power / coarse).round_()
    taken = weights != 0  # whole numbers add up to the same without the others
    with precision.use_full_precision():
        return torch.mm(e[taken].T, a[taken]).mul_(fine * coarse)
