"""The area under the ROC curve, from a noisy histogram of the score in each of two classes."""

from __future__ import annotations

from typing import Final

import numpy as np

from dpilot.errors import InvalidInput
from dpilot.metrics.counts import Counts, Floats
from dpilot.metrics.interval import Interval, Spread, clipped, hull, quantile
from dpilot.metrics.metric import Metric, metric

__all__ = ["auc", "pairs_auc"]

_GRID: Final = np.linspace(0.0, 1.0, 2001)


def auc(counts: Counts) -> Metric:
    """The chance that a record of the second class scores above one of the first, ties of a bin counted half.

    ::

        sum over bins i, j of w_ij h0_i h1_j / (n0 n1),   w_ij = 1 if j > i, 1/2 if j = i, 0 else

    The interval holds each area t for which sum (w_ij - t) h0_i h1_j is no further from 0 than noise and, for the
    population, sampling explain. The sampling variance is Hanley and McNeil's, a function of t, n0 and n1.

    Edge cases:
        coarse bins        ties count half, which on average takes a little from the area: see ``dpilot.metrics.counts``
        a class of nobody  by the noisy counts: the value is 1/2, the interval [0, 1]

    Reference:
        Hanley and McNeil, Radiology 1982.
    """
    if counts.scores is None:
        raise InvalidInput("the counts have no scores: expected two classes, whose second is ranked.")
    first, second = counts.scores
    value = _area(first, second)
    return metric("AUC", "", value, counts.score_deviation, lambda spread: _interval(first, second, value, spread))


def pairs_auc(scores: Floats, positive: Floats) -> float:
    """The area itself, of all pairs of records: for records that are declared public, and for tests.

    >>> pairs_auc(np.array([0.1, 0.4, 0.4, 0.9]), np.array([0.0, 0.0, 1.0, 1.0]))
    0.875
    """
    _, places = np.unique(scores, return_inverse=True)
    first, second = (np.bincount(places[positive == which], minlength=places.max() + 1) for which in (0.0, 1.0))
    return _area(first.astype(np.float64), second.astype(np.float64))


def _area(first: Floats, second: Floats) -> float:
    below = np.cumsum(first) - first / 2
    pairs = first.sum() * second.sum()
    return clipped(float(below @ second / pairs)) if min(first.sum(), second.sum()) > 0 else 0.5


def _interval(first: Floats, second: Floats, value: float, spread: Spread) -> Interval:
    n0, n1 = float(first.sum()), float(second.sum())
    if min(n0, n1) <= 0:
        return 0.0, 1.0
    variance = _noise(first, second, spread.deviation)
    if spread.sampling:
        variance = variance + (n0 * n1) ** 2 * _hanley_mcneil(max(n0, 1.0), max(n1, 1.0))
    score = float((np.cumsum(first) - first / 2) @ second) - _GRID * n0 * n1
    inside = _GRID[score**2 <= quantile() ** 2 * variance]
    return hull(value, inside)


def _noise(first: Floats, second: Floats, deviation: float) -> Floats:
    """The variance of sum (w_ij - t) h0_i h1_j from the noise, for each t of the grid.

    ::

        s^2 |W' h0|^2 + s^2 |W h1|^2 + s^4 |W|^2     with the true h; noisy ones add 2 s^4 |W|^2, which is taken off
    """
    bins = first.size
    weights = np.triu(np.ones((bins, bins)), 1) + np.eye(bins) / 2
    left = _squares(first @ weights, first.sum())
    right = _squares(weights @ second, second.sum())
    product = deviation**4 * _squares(weights.ravel(), 1.0)
    return np.asarray(np.maximum(deviation**2 * (left + right) - product, product))


def _squares(values: Floats, slope: float) -> Floats:
    """|values - t slope|^2 for each t of the grid."""
    square, cross = float(values @ values), float(values.sum()) * slope
    return np.asarray(square - 2 * _GRID * cross + _GRID**2 * slope**2 * values.size)


def _hanley_mcneil(n0: float, n1: float) -> Floats:
    t = _GRID
    both = t / (2 - t) - t * t
    other = 2 * t * t / (1 + t) - t * t
    return np.asarray((t * (1 - t) + (n1 - 1) * both + (n0 - 1) * other) / (n0 * n1))
