"""Numbers on the grid: never larger, and exact in sums."""

from __future__ import annotations

import numpy as np

from dpilot.metrics.regression import on_grid


def test_no_number_grows_and_none_moves_by_more_than_the_unit():
    values = np.random.default_rng(0).uniform(-1, 1, 10_000)
    kept = on_grid(values)
    assert np.all(np.abs(kept) <= np.abs(values))
    assert np.all(np.abs(kept - values) < 2.0**-30)
    assert np.array_equal(on_grid(kept), kept)


def test_a_sum_as_long_as_promised_still_takes_the_smallest_number():
    long, least = 2.0**23, 2.0**-30
    assert (long - 1 + least) - (long - 1) == least
    assert (2 * long + least) - 2 * long == 0.0
