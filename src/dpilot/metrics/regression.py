"""Root mean squared error and R^2 of a numeric target, from one noisy vector of bounded sums.

In units where the declared bounds of the target are [-1, 1], a record of target y and clipped prediction adds, with
e = min((prediction - y)^2, 1), an error beyond half the declared range counted as half of it::

    (1, y, y^2 - 1/2, y^3, y^4 - 1/2, e - 1/2, e^2 - 1/2)     times weights     (1, 0.7, 0.7, 0.25, 0.25, 2, 0.5)

rounded towards zero to multiples of 2^-30, so that the sums are exact (``on_grid``).

The weights give most of the sensitivity to what the error is read from; the high powers only shape intervals.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from dpilot import _validate
from dpilot._arrays import Floats
from dpilot.errors import InvalidInput
from dpilot.mechanism import EXACT, Draws, Noise, gaussian_event, release
from dpilot.metrics.interval import Interval, Spread, hull, invert_score
from dpilot.metrics.metric import Metric, metric
from dpilot.privacy.events import Event
from dpilot.statistics.rows import real_numbers

_CENTRES: Final = np.array([0.0, 0.0, 0.5, 0.0, 0.5, 0.5, 0.5])
_WEIGHTS: Final = np.array([1.0, 0.7, 0.7, 0.25, 0.25, 2.0, 0.5])
_ROWS: Final = 1 << 16  # added up at a time
_BOUND: Final = float(np.linalg.norm(_WEIGHTS * np.where(_CENTRES > 0, 0.5, 1.0))) * (1 + 1e-12)
"""Of the weighted vector of a record; the last factor so that rounding cannot carry one over it."""


@dataclass(frozen=True, slots=True)
class RegressionSums:
    """Sums over held-out records, in units of half the declared range; ``scale`` is that half, in the target's unit."""

    count: float
    powers: tuple[float, float, float, float]
    errors: tuple[float, float]
    deviation: float
    scale: float

    def noise(self, place: int) -> float:
        """The variance of the noise in one of the seven sums, for a deviation of 1 in the joint vector."""
        return float(1 / _WEIGHTS[place] ** 2)


def sums_event(noise_multiplier: float) -> Event:
    """What ``noisy_sums`` costs: one Gaussian."""
    return gaussian_event(noise_multiplier)


def noisy_sums(
    target: Floats,
    predicted: Floats,
    *,
    half_range: float,
    noise_multiplier: float,
    receipt: Draws,
    noise: Noise = EXACT,
) -> RegressionSums:
    """The sums that may be shown, of targets and predictions that are scaled so that the bounds are [-1, 1].

    Guarantee:
        One record moves the weighted vector by at most 1.66 in L2. A Gaussian of ``noise_multiplier``. Sums are
        exact to 2^23 records.

    Edge cases:
        A target outside [-1, 1], and what is not finite, is the null record. Predictions are clipped to [-1, 1].
    """
    vector = _vector(target, predicted)
    noisy = release(vector, bound=_BOUND, noise_multiplier=noise_multiplier, receipt=receipt, noise=noise)
    return _sums(noisy / _WEIGHTS, _BOUND * noise_multiplier, half_range)


def exact_sums(target: Floats, predicted: Floats, *, half_range: float) -> RegressionSums:
    """The sums themselves: for records that are declared public, and no others."""
    return _sums(_vector(target, predicted) / _WEIGHTS, 0.0, half_range)


def regression_scores(sums: RegressionSums) -> tuple[Metric, ...]:
    """Root mean squared error, in the target's own unit, and the share of the variance that is explained.

    Edge cases:
        no records or no variance, by the noisy sums R^2 is 0, and the interval is all that can be
        sampling of R^2                              errors and targets are taken as independent, which widens it where
                                                     records far from the mean have the larger errors

    Example:
        >>> y = np.linspace(-1, 1, 1000)
        >>> [(each.name, round(each.value, 3)) for each in regression_scores(exact_sums(y, y + 0.1, half_range=50.0))]
        [('RMSE', 4.915), ('R^2', 0.971)]
    """
    error = _mean_error(sums)
    return (
        metric("RMSE", "", sums.scale * math.sqrt(error), sums.deviation, partial(_rmse, sums)),
        metric("R^2", "", _r_squared(error, _variance(sums)), sums.deviation, partial(_r_squared_interval, sums)),
    )


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
    # A sum of 2^23 multiples of 2^-30 below 1 has 23 + 30 = 53 bits, what float64 holds.
    # tests/metrics/test_grid.py::test_a_sum_as_long_as_promised_still_takes_the_smallest_number.
    return np.asarray(np.trunc(values * 2.0**30) * 2.0**-30)


@np.errstate(all="ignore")  # whatever a caller has set: no number of a record may raise or warn
def _vector(target: Floats, predicted: Floats, rows: int = _ROWS) -> Floats:
    """The weighted sums."""
    y, p = real_numbers(target, "targets"), real_numbers(predicted, "predictions")
    if y.ndim != 1 or y.shape != p.shape:  # how many there are is protected
        raise InvalidInput("targets and predictions differ in number, or are not flat: expected one of each a record.")
    starts = range(0, y.size, rows)
    return sum((_add_up(y[start : start + rows], p[start : start + rows]) for start in starts), np.zeros(7))


def _add_up(y: Floats, p: Floats) -> Floats:
    """The weighted sums of some records."""
    kept = np.isfinite(p) & (np.abs(y) <= 1)
    y, p = y[kept], np.clip(p[kept], -1.0, 1.0)
    e = np.minimum((p - y) ** 2, 1.0)
    rows = np.column_stack([np.ones_like(y), y, y**2, y**3, y**4, e, e**2]) - _CENTRES
    return np.asarray(on_grid(rows * _WEIGHTS).sum(axis=0))


def _sums(vector: Floats, deviation: float, half_range: float) -> RegressionSums:
    half = _validate.positive(half_range=half_range)
    count, y, y2, y3, y4, e, e2 = (vector + _CENTRES * vector[0]).tolist()
    return RegressionSums(count, (y, y2, y3, y4), (e, e2), deviation, half)


def _mean_error(sums: RegressionSums) -> float:
    return min(max(sums.errors[0] / sums.count, 0.0), 1.0) if sums.count > 0 else 1.0


def _variance(sums: RegressionSums) -> float:
    """The variance of the target."""
    if sums.count <= 0:
        return 0.0
    first, second = sums.powers[0] / sums.count, sums.powers[1] / sums.count
    return min(max(second - first**2, 0.0), 1.0)


def _r_squared(error: float, variance: float) -> float:
    """1 - error / variance; a model worse than the mean by as much as can be is -1 at least here."""
    return max(1 - error / variance, -1.0) if variance > 0 else 0.0


def _rmse(sums: RegressionSums, spread: Spread) -> Interval:
    low, high = _error_interval(sums, spread)
    return sums.scale * math.sqrt(low), sums.scale * math.sqrt(high)


def _r_squared_interval(sums: RegressionSums, spread: Spread) -> Interval:
    """1 - error / variance at the ends that their own intervals leave, distances added by squares."""
    error, variance = _mean_error(sums), _variance(sums)
    value = _r_squared(error, variance)
    (low, high), (least, most) = _error_interval(sums, spread), _variance_interval(sums, spread)
    ratio = np.linspace(0.0, 2.0, 4001)
    difference = error - ratio * variance
    inside = (difference <= np.hypot(error - low, ratio * (most - variance)) + 1e-12) & (
        difference >= -np.hypot(high - error, ratio * (variance - least)) - 1e-12
    )
    return hull(value, 1 - ratio[inside])


def _error_interval(sums: RegressionSums, spread: Spread) -> Interval:
    """Of the mean of e: its sum carries half the noise of the count, as it was centred by 1/2."""
    first, second = sums.errors

    def variance(t: Floats) -> Floats:
        noise = spread.deviation**2 * (sums.noise(5) + sums.noise(0) * (t - 0.5) ** 2)
        drawn = second - 2 * t * first + t * t * sums.count
        return noise + (np.maximum(drawn, 0.0) if spread.sampling else 0.0)

    return _score_interval(lambda t: first - t * sums.count, variance, _mean_error(sums))


def _variance_interval(sums: RegressionSums, spread: Spread) -> Interval:
    """Of the variance of y, with its mean m as released: that of sum (y - m)^2 - t."""
    value = _variance(sums)
    if sums.count <= 0:
        return 0.0, 1.0
    y, y2, y3, y4 = sums.powers
    m = y / sums.count
    squares = y2 - 2 * m * y + m * m * sums.count
    fourth = y4 - 4 * m * y3 + 6 * m * m * y2 - 4 * m**3 * y + m**4 * sums.count

    def variance(t: Floats) -> Floats:
        noise = spread.deviation**2 * (
            sums.noise(2) + sums.noise(1) * 4 * m * m + sums.noise(0) * (0.5 + m * m - t) ** 2
        )
        drawn = fourth - 2 * t * squares + t * t * sums.count
        return noise + (np.maximum(drawn, 0.0) if spread.sampling else 0.0)

    return _score_interval(lambda t: squares - t * sums.count, variance, value)


def _score_interval(score: Callable[[Floats], Floats], variance: Callable[[Floats], Floats], value: float) -> Interval:
    t = np.linspace(0.0, 1.0, 4001) ** 2
    return invert_score(value, t, score(t), variance(t))
