"""The number of rows of a unit that count, bought: a noisy quantile of how many rows units have."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

import numpy as np

from dpilot import _validate
from dpilot._arrays import Floats, Indices
from dpilot.mechanism import SYSTEM, Draws, Noise
from dpilot.privacy.events import Event
from dpilot.statistics import table, table_event

__all__ = ["CAPS", "MOST_ROWS", "buy_rows_per_unit", "rows_per_unit_event"]

CAPS: Final = (1, 2, 4, 8, 16, 32, 64)
"""What can come out."""
MOST_ROWS: Final = CAPS[-1]
_CERTAIN: Final = 2.0  # standard deviations, below which a count is taken for 0


def rows_per_unit_event(noise_multiplier: float) -> Event:
    """What ``buy_rows_per_unit`` costs: one Gaussian."""
    return table_event(noise_multiplier)


def buy_rows_per_unit(
    sizes: Indices | Iterator[Indices],
    *,
    noise_multiplier: float,
    receipt: Draws,
    covered: float = 0.9,
    noise: Noise = SYSTEM,
) -> int:
    """The least of ``CAPS`` that is no less than the number of rows of ``covered`` of the units, with noise.

    ``sizes`` has the number of rows of each unit, or of some units at a time.

    Guarantee:
        A unit is in one cell of a histogram, whatever its rows: a Gaussian of ``noise_multiplier``.

    Edge cases:
        A unit with more rows than the largest of ``CAPS`` counts in that cell, one of no rows in none.
        Noise that hides everything: ``MOST_ROWS``, which costs time and nothing else.

    Example:
        >>> from dpilot.privacy.receipt import Receipt
        >>> sizes = np.repeat([1, 3, 40], [500, 450, 50])
        >>> buy_rows_per_unit(sizes, noise_multiplier=2.0, receipt=Receipt(rows_per_unit_event(2.0)))
        4
    """
    covered = _validate.open_unit(covered=covered)
    pieces = [sizes] if isinstance(sizes, np.ndarray) else chain([np.zeros(0, dtype=np.int64)], sizes)
    counts: Floats = table(
        map(_cells, pieces),
        shape=(len(CAPS),),
        noise_multiplier=noise_multiplier,
        receipt=receipt,
        noise=noise,
    )
    surely = np.where(counts > _CERTAIN * noise_multiplier, counts, 0.0)
    enough = np.cumsum(surely) >= covered * surely.sum()
    return CAPS[int(np.argmax(enough))] if surely.any() else MOST_ROWS


def _cells(sizes: Indices) -> Floats:
    """The place among ``CAPS`` of each unit."""
    return np.where(sizes > 0, np.searchsorted(CAPS, np.minimum(sizes, MOST_ROWS)), -1)[:, None].astype(np.float64)
