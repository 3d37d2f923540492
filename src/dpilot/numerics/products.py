"""Products of rows with a matrix, each row's own to the last bit.

Libraries multiply the last rows of a block, or of a thread's share of it, by another kernel, which adds up in another
order: a row's product would go by its place. So factors are cut into limbs of few bits, of which all sums are exact
whatever their order::

    rows = 2^e (H + L)    weights = 2^f (V + U)    H, V of b bits, L, U of the next b
    rows @ weights ~ 2^(e + f) (H V + H U + L V)

Every partial sum is a whole multiple of one unit, and at most d 2^2b of them, which is 2^53 or less.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["cut_products", "products"]

_ROWS: Final = 4096  # multiplied at a time
_BITS: Final = 53
_ROW_BITS: Final = 21  # of a row that was cut to the grid of its own length (numerics.grid)
_LEAST: Final = -900  # exponents below are taken for this one: their scale could not be held


@np.errstate(all="ignore")
def products(rows: NDArray[Any], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """``rows @ weights``, to about 2^-44 of the largest term that a row's sums may have.

    Guarantee:
        The product of a row depends on that row alone, to the last bit: not on its place, and not on how many rows
        there are, by which kernels are chosen. A bit more would change a class where two scores are equal, or the bin
        of a norm at its edge, and from some number of rows on it would do so for all of them at once
        (tests/attacks/test_grid_places.py).

    >>> products(np.ones((3, 2)), np.array([1.0, 2.0])).tolist()
    [3.0, 3.0, 3.0]
    """
    matrix = weights.reshape(len(weights), -1)
    count, bits = matrix.shape[1], (_BITS - _log2(len(matrix))) // 2
    units = _powers(matrix, axis=1)  # of each feature: numbers of a row are compared by what they add to a sum
    power, limbs = _limbs(matrix / units, bits, axis=0)
    found = np.empty((len(rows), count))
    for start in range(0, len(rows), _ROWS):
        own, (high, low) = _limbs(rows[start : start + _ROWS] * units.T, bits, axis=1)
        first = high @ np.concatenate(limbs, axis=1)
        rest = first[:, count:] + low @ limbs[0]
        found[start : start + _ROWS] = (first[:, :count] + rest * 2.0**-bits) * own * power
    return found.reshape(len(rows), *weights.shape[1:])


@np.errstate(all="ignore")
def cut_products(rows: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same of rows that ``numerics.grid.cut_rows`` cut, to all bits of the weights: one multiplication.

    Their numbers are multiples of 2^-21 of a power of two that is above their length, so partial sums are at most
    2^21 sqrt(d) 2^b multiples of one unit (Cauchy and Schwarz).
    """
    matrix = weights.reshape(len(weights), -1)
    bits = _BITS - _ROW_BITS - 1 - -(-_log2(len(matrix)) // 2)
    power, (high, low) = _limbs(matrix, bits, axis=0)
    both = rows @ np.concatenate([high * power, low * (power * 2.0**-bits)], axis=1)
    count = matrix.shape[1]
    return np.asarray(both[:, :count] + both[:, count:]).reshape(len(rows), *weights.shape[1:])


def _limbs(values: NDArray[Any], bits: int, *, axis: int) -> tuple[NDArray[Any], tuple[NDArray[Any], NDArray[Any]]]:
    """The unit of each row (axis 1) or column (axis 0), and two limbs of whole numbers, the second of 2^-bits units."""
    units = _powers(values, axis=axis) * 2.0**-bits
    scaled = values / units
    high = np.rint(scaled)
    return units, (high, np.rint((scaled - high) * 2.0**bits))


def _powers(values: NDArray[Any], *, axis: int) -> NDArray[Any]:
    """A power of two above the numbers of each row or column."""
    largest = np.abs(values).max(axis=axis, keepdims=True, initial=0.0)
    powers: NDArray[Any] = np.ldexp(1.0, np.maximum(np.frexp(largest)[1], _LEAST))
    return powers


def _log2(count: int) -> int:
    return math.ceil(math.log2(max(count, 1)))
