"""Full-batch gradient steps whose clip level follows a private quantile of the gradient norms.

The histogram that comes with each step's private sum (``linear.row_gradients``) gives the next threshold, the share of
records that were not clipped (the slope of the step), and whether the last step went wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from dpilot._arrays import Floats
from dpilot.linear.row_gradients import EDGES, GridRows, HistogramClip, Residual, gradient_step, linear_residual
from dpilot.mechanism import Draws, Noise

__all__ = ["Descent", "Leave", "StepSchedule", "descend", "norm_quantile"]

Leave = Callable[[Floats, float], bool]

_MIDDLES: Final = np.append(np.sqrt(np.append(EDGES[0] / 4, EDGES[:-1]) * EDGES), 1.5 * EDGES[-1])
_LEVELS: Final = 2.0 ** np.arange(-4.0, 4.01, 0.125)
_CERTAIN: Final = 3.0  # standard deviations above which a bin is believed
_AT_THRESHOLD: Final = 4  # of these edges
_LEAST_SLOPE: Final = 0.25
_MOST_MOVE: Final = 8.0  # of the threshold in one step
_PACE: Final = 0.8  # of a Newton step: an eigenvalue of up to 2.5 times what was whitened does not overshoot
_DOUBT: Final = 1.6  # times the noise of a bin: the standard deviation of the share of norms below an edge
_WORSE: Final = 2.0  # times the best median of norms: the last step overshot


@dataclass(frozen=True, slots=True)
class StepSchedule:
    """Public: a noise multiplier for each step, how many of them are not averaged, and the terms of clipping.

    ``noise`` is what a unit of clip level costs in the averaged weights, ``alignment`` how much of what is clipped off
    is taken to point one way, ``share`` what the histogram gets of the squared bound, ``curvature`` the loss's (1, or
    1/4 for logistic), ``early`` the quantile of norms at which the first ``tracking`` steps are clipped. Without
    ``rising`` the clip level only falls: where noise is what lengthens the norms, a level that follows them up lets in
    more of it.
    """

    multipliers: tuple[float, ...]
    burn_in: int
    noise: float
    alignment: float = 0.1
    share: float = 0.03
    curvature: float = 1.0
    early: float = 0.5
    tracking: int = 5
    rising: bool = True

    @property
    def kappa(self) -> float:
        return math.sqrt(self.share / (1 - self.share))

    def histogram_noise(self, multiplier: float) -> float:
        """The standard deviation of noise in one bin of the histogram."""
        return multiplier * math.sqrt(1 + 1 / self.kappa**2)


@dataclass(frozen=True, slots=True)
class Descent:
    """Released: the averaged weights, the standard deviation of noise in each of them, and the clip levels."""

    weights: Floats
    noise: float
    thresholds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Place:
    """Weights, the standard deviation of privacy noise in each, and the clip level of the next step from there."""

    weights: Floats
    spread: float
    threshold: float


@dataclass(frozen=True, slots=True)
class _State:
    at: _Place
    pace: float = 1.0
    best: _Place | None = None  # where the median of norms was least, and
    least: float = math.inf  # that median, at most


def descend(
    rows: GridRows,
    start: Floats,
    schedule: StepSchedule,
    *,
    threshold: float,
    size: float,
    receipt: Draws,
    noise: Noise,
    spread: float = 0.0,
    residual: Residual = linear_residual,
    leave: Leave | None = None,
) -> Descent:
    """Run all steps from ``start``, a (columns, outputs) matrix, and average those after the burn-in by their budget.

    ``spread`` is the standard deviation of privacy noise that each weight of ``start`` has already.
    After the burn-in ``leave`` sees the weights and the noise in each of them, all released; if it says so, the steps
    end there, and the receipt still holds the releases of those that are left.

    Guarantee:
        One Gaussian a step, that of ``gradient_step``.

    Edge cases:
        Where the norms grow instead of shrinking, beyond what noise explains, the step is taken back and the pace
        halved: released values only.
    """
    state = _State(_Place(start, spread, threshold))
    mean, weight, variance = np.zeros_like(start), 0.0, 0.0
    thresholds = list[float]()
    for step, sigma in enumerate(schedule.multipliers):
        if step == schedule.burn_in and leave is not None and leave(state.at.weights, state.at.spread):
            return Descent(state.at.weights, state.at.spread, tuple(thresholds))
        gradient, counts = gradient_step(
            rows,
            state.at.weights,
            HistogramClip(state.at.threshold, schedule.kappa),
            noise_multiplier=sigma,
            receipt=receipt,
            noise=noise,
            residual=residual,
        )
        thresholds.append(state.at.threshold)
        early = step < min(schedule.tracking, schedule.burn_in - 1)
        state = _take_step(state, gradient, counts / size, sigma, schedule, size, early)
        if step >= schedule.burn_in:
            part = 1 / sigma**2
            mean, weight = mean + part * state.at.weights, weight + part
            variance += (part * state.at.spread) ** 2
    return Descent(mean / weight, math.sqrt(variance) / weight, tuple(thresholds))


def norm_quantile(shares: Floats, q: float) -> float:
    """The ``q``-quantile of the norms, in thresholds, from noisy shares of the bins."""
    return _quantile(_distribution(shares), q)


def _take_step(
    state: _State, gradient: Floats, shares: Floats, sigma: float, schedule: StepSchedule, size: float, early: bool
) -> _State:
    """The state after a step along the released gradient, or where the norms were least if they have grown since."""
    at, below, noise = state.at, _distribution(shares), schedule.histogram_noise(sigma) / size
    least, most = (at.threshold * _quantile(below, 0.5 + z * noise) for z in (-_DOUBT, _DOUBT))  # of the median
    if state.best is not None and least > _WORSE * state.least:
        return replace(state, at=state.best, pace=state.pace / 2)
    slope = max(_LEAST_SLOPE, float(below[_AT_THRESHOLD]))
    length = _PACE * state.pace * at.threshold / (size * schedule.curvature * slope)
    level = _quantile(below, schedule.early) if early else _cheapest(_significant(shares, noise), below, schedule)
    threshold = at.threshold * min(max(level, 1 / _MOST_MOVE), _MOST_MOVE if schedule.rising else 1.0)
    spread = length * sigma * math.sqrt(1 + schedule.kappa**2)
    moved = replace(state, at=_Place(at.weights + length * gradient, spread, threshold))
    return replace(moved, best=replace(at, threshold=threshold), least=most) if most <= state.least else moved


def _distribution(shares: Floats) -> Floats:
    """The share of norms below each edge, from both ends: each end's noise grows with the bins it adds up."""
    from_below = np.cumsum(shares)[:-1]
    from_above = 1 - np.cumsum(shares[::-1])[::-1][1:]
    bins = np.arange(1, EDGES.size + 1)
    ahead = bins[::-1]
    mixed = (from_below * ahead + from_above * bins) / (bins + ahead)
    return np.asarray(np.maximum.accumulate(np.clip(mixed, 0.0, 1.0)))


def _significant(shares: Floats, noise: float) -> Floats:
    return np.asarray(np.where(shares > _CERTAIN * noise, shares, 0.0))


def _cheapest(shares: Floats, below: Floats, schedule: StepSchedule) -> float:
    """The clip level, in present thresholds, with the least squared error that is left of a step::

        (alignment E[(|g| - C)+])^2 + (noise C / P[|g| <= C])^2

    The first is what clipping takes off the gradient, if a part ``alignment`` of it points one way; the second is the
    privacy noise in the weights.
    """
    excess = np.maximum(_MIDDLES - _LEVELS[:, None], 0.0) @ shares
    unclipped = np.maximum(np.interp(np.log2(_LEVELS), np.log2(EDGES), below), _LEAST_SLOPE)
    error = (schedule.alignment * excess) ** 2 + (schedule.noise * _LEVELS / unclipped) ** 2
    middle = _quantile(below, 0.5)
    return min(max(float(_LEVELS[np.argmin(error)]), 0.5 * middle), 8 * middle)


def _quantile(below: Floats, q: float) -> float:
    """Where ``below`` reaches q, in thresholds, by log-linear interpolation between edges."""
    place = int(np.searchsorted(below, q))
    if place == 0:
        return float(EDGES[0])
    if place == below.size:
        return float(EDGES[-1])
    part = (q - below[place - 1]) / max(float(below[place] - below[place - 1]), 1e-9)
    return float(EDGES[place - 1] * (EDGES[place] / EDGES[place - 1]) ** part)
