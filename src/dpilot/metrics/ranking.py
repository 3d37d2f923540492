"""Areas under the ROC and the precision-recall curve, from a noisy histogram of the score in each of two classes."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Final

import numpy as np

from dpilot._arrays import Floats
from dpilot.errors import InvalidInput
from dpilot.metrics.counts import EDGES, STEP, Counts
from dpilot.metrics.interval import Interval, Proportion, Spread, clip_unit, hull, invert_score, quantile
from dpilot.metrics.metric import Metric, metric
from dpilot.metrics.simulation import standard_draws

_GRID: Final = np.linspace(0.0, 1.0, 2001)
_DRAWS: Final = 400
_SIDES: Final = 2  # ends of an average precision share the level: noise in the top bins pulls it by more than they say
_CERTAIN: Final = 1e-4  # from 0 and 1, where log odds end
_PIECES: Final = 8  # that a bin is cut into
_OPEN: Final = 3.0  # how many bins wide the first and the last, which have one end, are taken to be


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


def average_precision(counts: Counts) -> Metric:
    """PR-AUC: the mean, over the records of the second class, of the precision among those that score as high.

    ::

        sum over bins k from the top of (h1_k / n1) TP_k / (TP_k + FP_k)

    A bin of width d is cut into pieces along which the odds of the second class rise by e^(d/2), as for ``auc``; in the
    interval by anything from e^0 to e^2d; the first and the last bin, which have one end, are taken to be three wide.
    The interval is one on the log odds, which keeps it inside [0, 1]: their spread, and how far they are off on
    average, where the same noise is added once more, and for the population that of counts (Poisson's) as well.

    Edge cases:
        exact counts       every score that occurs is a threshold, as in scikit-learn's average_precision_score
        a small class      by the noisy counts, below two deviations of their noise: the interval is [0, 1]

    Reference:
        Boyd, Eng and Page, "Area under the Precision-Recall Curve: Point Estimates and Confidence Intervals", ECML PKDD
        2013 (the interval on the log odds).
    """
    if counts.scores is None:
        raise InvalidInput("the counts have no scores: expected two classes, whose second is ranked.")
    first, second = counts.scores
    rises = (None,) if counts.exact else (STEP / 2, 0.0, 2 * STEP)
    value = float(_average_precision(first, second, rises[0]))

    def ends(spread: Spread) -> Interval:
        found = [_precision_interval(np.stack([first, second]), rise, spread) for rise in rises]
        return hull(value, [end for pair in found for end in pair])

    return metric("average precision", "", value, counts.score_deviation, ends)


def score_curves(counts: Counts) -> list[Metric]:
    """The ROC curve, bin by bin of the score, and in each bin the share of the second class (calibration).

    Edge cases:
        exact counts             none: every score that occurs would be a point
        a bin that may be empty  by the noisy counts: its share may be anything, and its interval says so
    """
    if counts.exact or counts.scores is None:
        return []
    tables, bins = counts.scores, counts.scores.shape[1]
    found = []
    for name, table in zip(("false positive rate", "true positive rate"), tables, strict=True):
        for place, edge in enumerate(EDGES, start=1):
            rate = Proportion(float(table[place:].sum()), float(table[:place].sum()), bins - place, place)
            found.append(metric(name, f"score above {edge:.3g}", rate.value, counts.score_deviation, rate.interval))
    ends = (0.0, *EDGES, 1.0)
    for place, (low, high) in enumerate(pairwise(ends)):
        rate = Proportion(float(tables[1, place]), float(tables[0, place]))
        of = f"score {low:.3g} to {high:.3g}"
        found.append(metric("calibration", of, rate.value, counts.score_deviation, rate.interval))
    return found


def _average_precision(first: Floats, second: Floats, rise: float | None) -> Floats:
    """Of counts (..., bins), with odds that rise by e^rise along each bin; None: each bin is one score."""
    half = 0.0
    if rise is not None:
        # along a bin, from below: shares in proportion to e^(-+ rise u / 2), so that their odds rise by e^rise; half of
        # a piece's own records score as high as one in its middle
        u, half = (np.arange(_PIECES) + 0.5) / _PIECES - 0.5, 0.5
        rises = np.full(first.shape[-1], rise)
        rises[[0, -1]] *= _OPEN
        first, second = _cut(first, np.exp(-np.outer(rises, u) / 2)), _cut(second, np.exp(np.outer(rises, u) / 2))
    negative, positive = first[..., ::-1], second[..., ::-1]
    hits, wrong = (np.maximum(np.cumsum(each, axis=-1) - half * each, 0.0) for each in (positive, negative))
    share = np.divide(hits, hits + wrong, out=np.zeros_like(hits), where=hits + wrong > 0)
    total = np.maximum(positive.sum(axis=-1), 1e-300)
    return np.asarray(np.clip((positive * share).sum(axis=-1) / total, 0.0, 1.0))


def _cut(counts: Floats, parts: Floats) -> Floats:
    """The counts of each bin's pieces, in proportion to ``parts`` (bins, pieces)."""
    cut = counts[..., None] * (parts / parts.sum(axis=1, keepdims=True))
    return np.asarray(cut.reshape(*counts.shape[:-1], -1))


def _precision_interval(counts: Floats, rise: float | None, spread: Spread) -> Interval:
    value = float(_average_precision(counts[0], counts[1], rise))
    if not spread.deviation:
        return _exact_precision_interval(value, float(counts[1].sum())) if spread.sampling else (value, value)
    if counts[1].sum() <= 2 * spread.deviation * math.sqrt(counts.shape[1]):
        return 0.0, 1.0
    variance = spread.deviation**2 + (np.maximum(counts, 0.0) if spread.sampling else np.zeros(counts.shape))
    again = counts + np.sqrt(variance) * standard_draws(_DRAWS, *counts.shape)
    odds = _log_odds(_average_precision(again[:, 0], again[:, 1], rise))
    found, shift, reach = float(_log_odds(np.array(value))), float(odds.mean()), quantile(_SIDES) * float(odds.std())
    low, high = min(found, 2 * found - shift) - reach, max(found, 2 * found - shift) + reach
    return 1 / (1 + math.exp(-low)), 1 / (1 + math.exp(-high))


def _exact_precision_interval(value: float, positives: float) -> Interval:
    """That of Boyd et al.: log odds of variance 1 / (n1 t (1 - t)); a histogram of all scores is long."""
    inside = min(max(value, _CERTAIN), 1 - _CERTAIN)
    reach = quantile() / math.sqrt(max(positives, 1.0) * inside * (1 - inside))
    middle = math.log(inside / (1 - inside))
    return 1 / (1 + math.exp(reach - middle)), 1 / (1 + math.exp(-middle - reach))


def _log_odds(shares: Floats) -> Floats:
    inside = np.clip(shares, _CERTAIN, 1 - _CERTAIN)
    return np.asarray(np.log(inside / (1 - inside)))


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
