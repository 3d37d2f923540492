"""Numbers on a grid that is coarse enough for their sums to be exact, whatever the order they are added in."""

from __future__ import annotations

from typing import Final

import numpy as np

from dpilot._arrays import Floats

_UNIT: Final = 2.0**-30
EXACT_RECORDS: Final = 2**23
"""So many numbers in [-1, 1] on the grid, and all their partial sums, fit into the 53 bits of a float64."""


def on_grid(values: Floats) -> Floats:
    """The nearest multiples of 2^-30 towards zero.

    Sums that are rounded as they grow move, from one data set to its neighbour, by what the record adds and by all
    roundings that it changes, which no bound on the record covers.

    Guarantee:
        No number grows. Sums of up to 2^23 numbers in [-1, 1] are exact in float64: one number more moves a sum by
        that number, to the last bit. Of n numbers beyond, a sum is off by less than n^2 2^-53.

    Example:
        >>> on_grid(np.array([1.0, -0.5, 1e-10, -1 / 3])).tolist()
        [1.0, -0.5, 0.0, -0.3333333330228925]
    """
    return np.asarray(np.trunc(values / _UNIT) * _UNIT)
