"""Noisy figures of a fitted regression on private records: how far targets reach, then bounded sums within that."""

from __future__ import annotations

from typing import Final

import numpy as np

from dpilot.linear.problem import Problem, multiplier
from dpilot.mechanism import Draws, Noise, release
from dpilot.metrics.metric import Metric
from dpilot.metrics.regression import noisy_sums, regression_scores
from dpilot.privacy.events import Composed, Event, Gaussian
from dpilot.statistics.rows import Floats

__all__ = ["noisy_scores", "score_event"]

_EDGES: Final = 2.0 ** np.arange(-0.5, 10.01, 0.5)  # how far a target may reach, in widths
_SHARE: Final = 0.1  # of the squared mu, for the reach
_CERTAIN: Final = 4.0  # standard deviations above which a bin is believed


def score_event(problem: Problem) -> Event:
    """What ``noisy_scores`` costs: all of the budget of ``problem``, in two Gaussians."""
    return Composed(map(Gaussian, _multipliers(problem)))


def noisy_scores(
    target: Floats, predicted: Floats, *, center: float, width: float, problem: Problem, receipt: Draws, noise: Noise
) -> tuple[Metric, ...]:
    """Root mean squared error and R^2, with intervals, of targets that lie about ``center`` by some ``width``.

    A noisy histogram of distances from the centre tells how far targets reach: to the end of the last bin that stands
    out of its noise. Targets and predictions are pulled in to there, and so are errors, to half of the whole range.

    Guarantee:
        A record is in one bin of the histogram, which moves by 1; the sums by ``metrics.noisy_sums``. Two Gaussians.

    Edge cases:
        A record whose target or prediction is not finite is the null record.
    """
    first, second = _multipliers(problem)
    kept = np.isfinite(target) & np.isfinite(predicted)
    with np.errstate(all="ignore"):  # what overflows is far: it is pulled in below, and no warning may tell of it
        y, p = ((values[kept] - center) / width for values in (target, predicted))
    places = np.searchsorted(_EDGES[:-1], np.abs(y))
    counts = np.bincount(places, minlength=_EDGES.size).astype(np.float64)
    noisy = release(counts, bound=1.0, noise_multiplier=first, receipt=receipt, noise=noise)
    seen = np.flatnonzero(noisy > _CERTAIN * first)
    reach = float(_EDGES[seen[-1]] if seen.size else _EDGES[0])
    sums = noisy_sums(
        np.clip(y / reach, -1.0, 1.0),
        p / reach,
        half_range=reach * width,
        noise_multiplier=second,
        receipt=receipt,
        noise=noise,
    )
    return regression_scores(sums)


def _multipliers(problem: Problem) -> tuple[float, float]:
    return multiplier(problem, _SHARE), multiplier(problem, 1 - _SHARE)
