"""Products of rows with a matrix, each row's own to the last bit."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["products"]

_ROWS: Final = 512  # multiplied at a time


def products(rows: NDArray[Any], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """``rows @ weights``, in blocks of one size, the last one filled up with zeros.

    Guarantee:
        The product of a row depends on that row alone, to the last bit: not on its place, and not on how many rows
        there are, by which kernels are chosen. A bit more would change a class where two scores are equal, or the bin
        of a norm at its edge, and from some number of rows on it would do so for all of them at once.

    >>> products(np.ones((3, 2)), np.array([1.0, 2.0])).tolist()
    [3.0, 3.0, 3.0]
    """
    found = np.empty((len(rows), *weights.shape[1:]))
    block = np.zeros((_ROWS, rows.shape[1]))  # of one layout, too
    for start in range(0, len(rows), _ROWS):
        part = rows[start : start + _ROWS]
        block[: len(part)] = part
        block[len(part) :] = 0.0
        found[start : start + _ROWS] = (block @ weights)[: len(part)]
    return found
