"""The area under the ROC curve, from a noisy histogram of the score in each of two classes."""

from __future__ import annotations

from typing import Final

import numpy as np

from dpilot._arrays import Floats
from dpilot.errors import InvalidInput
from dpilot.metrics.counts import STEP, Counts
from dpilot.metrics.interval import Interval, Spread, clip_unit, hull, invert_score
from dpilot.metrics.metric import Metric, metric

_GRID: Final = np.linspace(0.0, 1.0, 2001)


def auc(counts: Counts) -> Metric:
    """The chance that a record of the second class scores above one of the first.

    ::

        sum over bins i, j of w_ij h0_i h1_j / (n0 n1),   w_ij = 1 if j > i, 0 if j < i, 1/2 + d/24 if j = i

    Inside a bin of width d in the log odds the score still ranks a little: where it is calibrated, the odds of the
    second class rise by e^d across the bin, which puts pairs in order with probability 1/2 + d/12 + O(d^3). Privately
    trained models are overconfident, by two or so, which halves it.

    The interval holds each area t for which sum (w_ij - t) h0_i h1_j is no further from 0 than noise and, for the
    population, sampling explain, with w_ii anywhere between 1/2 (the score says nothing inside a bin) and 1/2 + d/6
    (it is twice as sharp as a calibrated one). The sampling variance is Hanley and McNeil's, of t, n0 and n1.

    Edge cases:
        exact counts       every pair of records is compared
        an empty class     by the noisy counts: the value is 1/2, the interval [0, 1]

    Reference:
        Hanley and McNeil, Radiology 1982.
    """
    if counts.scores is None:
        raise InvalidInput("the counts have no scores: expected two classes, whose second is ranked.")
    first, second = counts.scores
    shift = 0.0 if counts.exact else STEP / 24
    value = _area(first, second, _ties(first.size, shift))

    def ends(spread: Spread) -> Interval:
        found = [_interval(first, second, _ties(first.size, each), spread) for each in {0.0, 4 * shift}]
        return hull(value, [end for pair in found for end in pair])

    return metric("AUC", "", value, counts.score_deviation, ends)


def _ties(bins: int, shift: float) -> Floats:
    """What a pair within each bin counts."""
    return np.full(bins, 0.5 + shift)


def _concordant_pairs(first: Floats, second: Floats, ties: Floats) -> float:
    """Pairs in order: of bins before, and their share within a bin."""
    return float((np.cumsum(first) - (1 - ties) * first) @ second)


def _area(first: Floats, second: Floats, ties: Floats) -> float:
    pairs = first.sum() * second.sum()
    return (
        clip_unit(_concordant_pairs(first, second, ties) / float(pairs)) if min(first.sum(), second.sum()) > 0 else 0.5
    )


def _interval(first: Floats, second: Floats, ties: Floats, spread: Spread) -> Interval:
    n0, n1 = float(first.sum()), float(second.sum())
    if min(n0, n1) <= 0:
        return 0.0, 1.0
    variance = _noise(first, second, ties, spread.deviation) if spread.deviation else np.zeros_like(_GRID)
    if spread.sampling:
        variance = variance + (n0 * n1) ** 2 * _hanley_mcneil(max(n0, 1.0), max(n1, 1.0))
    score = _concordant_pairs(first, second, ties) - _GRID * n0 * n1
    return invert_score(_area(first, second, ties), _GRID, score, variance)


def _noise(first: Floats, second: Floats, ties: Floats, deviation: float) -> Floats:
    """The variance of sum (w_ij - t) h0_i h1_j from the noise, for each t of the grid.

    ::

        s^2 |W' h0|^2 + s^2 |W h1|^2 + s^4 |W|^2     with the true h; noisy ones add 2 s^4 |W|^2, which is taken off
    """
    weights = np.triu(np.ones((first.size, first.size)), 1) + np.diag(ties)
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
