"""Noisy figures of a fitted regression on private records: how far targets reach, then bounded sums within that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from dpilot._arrays import Floats
from dpilot.linear.problem import LinearProblem, multiplier
from dpilot.mechanism import Draws, Noise, release
from dpilot.metrics.metric import Metric
from dpilot.metrics.regression import noisy_sums, regression_scores
from dpilot.metrics.residuals import Groups, noisy_residuals, residual_scores, table_noise
from dpilot.privacy.events import Composed, Event, Gaussian

__all__ = ["Grouped", "noisy_scores", "score_event"]

_EDGES: Final = 2.0 ** np.arange(-0.5, 10.01, 0.5)  # how far a target may reach, in widths
_SHARE: Final = 0.1  # of the squared mu, for the reach
_CERTAIN: Final = 4.0  # standard deviations above which a bin is believed


@dataclass(frozen=True, slots=True)
class Grouped:
    """The group of each record, nan where it has none of the declared, and their names."""

    codes: Floats
    groups: Groups


def score_event(problem: LinearProblem, *, attributes: int = 0) -> Event:
    """What ``noisy_scores`` costs: all of the budget of ``problem``, in two Gaussians and one for each attribute."""
    reach, figures = _multipliers(problem)
    if not attributes:
        return Composed(map(Gaussian, (reach, figures)))
    whole, grouped = table_noise(figures, attributes)
    return Composed(map(Gaussian, (reach, whole, *[grouped] * attributes)))


def noisy_scores(
    target: Floats,
    predicted: Floats,
    *,
    center: float,
    width: float,
    problem: LinearProblem,
    receipt: Draws,
    noise: Noise,
    grouped: Sequence[Grouped] = (),
) -> tuple[Metric, ...]:
    """Root mean squared error and R^2, with intervals, of targets that lie about ``center`` by some ``width``.

    With ``grouped`` also records, error and mean residual of each group of each attribute.

    A noisy histogram of distances from the centre tells how far targets reach: to the end of the last bin that stands
    out of its noise. Targets and predictions are pulled in to there, and so are errors, to half of the whole range.

    Guarantee:
        A record is in one bin of the histogram, which moves by 1; the sums by ``metrics.noisy_sums``, the
        groups by ``metrics.residuals``. A Gaussian each.

    Edge cases:
        A record whose target or prediction is not finite is the null record.
    """
    first, figures = _multipliers(problem)
    second, third = table_noise(figures, len(grouped)) if grouped else (figures, math.inf)
    kept = np.isfinite(target) & np.isfinite(predicted)
    with np.errstate(all="ignore"):  # what overflows is far: it is pulled in below, and no warning may tell of it
        y, p = ((values[kept] - center) / width for values in (target, predicted))
    places = np.searchsorted(_EDGES[:-1], np.abs(y))
    counts = np.bincount(places, minlength=_EDGES.size).astype(np.float64)
    noisy = release(counts, bound=1.0, noise_multiplier=first, receipt=receipt, noise=noise)
    seen = np.flatnonzero(noisy > _CERTAIN * first)
    reach = float(_EDGES[seen[-1]] if seen.size else _EDGES[0])
    pair = np.clip(y / reach, -1.0, 1.0), p / reach
    paid: dict[str, Any] = {"half_range": reach * width, "receipt": receipt, "noise": noise}
    whole = regression_scores(noisy_sums(*pair, noise_multiplier=second, **paid))
    tables = (noisy_residuals(*pair, each.codes[kept], each.groups, noise_multiplier=third, **paid) for each in grouped)
    return (*whole, *(figure for table in tables for figure in residual_scores(table)))


def _multipliers(problem: LinearProblem) -> tuple[float, float]:
    return multiplier(problem, _SHARE), multiplier(problem, 1 - _SHARE)
