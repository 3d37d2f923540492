"""Least squares by whitened, adaptively clipped, full-batch private gradient descent."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from dpilot._arrays import Floats
from dpilot.linear.descent import Leave, StepSchedule, descend
from dpilot.linear.gram_matrix import Gram, GramPlan, gram_stage, plan_gram
from dpilot.linear.problem import CommittedRun, LinearProblem, gaussian_events, multiplier
from dpilot.linear.row_gradients import GridRows
from dpilot.linear.rows import Rows
from dpilot.linear.solution import Solution
from dpilot.mechanism import Draws, Noise
from dpilot.numerics.products import products
from dpilot.privacy.events import Event

__all__ = ["Dpgd", "Pace", "gram_share", "histogram_share", "pace_of", "shrink", "walk"]


@dataclass(frozen=True, slots=True)
class Pace:
    """How many steps come before the average and are in it, the budget of an early one beside a late one's, and
    how much of what clipping takes off is taken to point one way."""

    burn_in: int
    averaged: int
    early_weight: float
    alignment: float


def pace_of(problem: LinearProblem) -> Pace:
    """Few steps and low clip levels where noise is what costs; many steps and high levels where bias does.

    Chosen on synthetic tables: normal ones for the first, collinear, skewed and outlying ones for the second.
    """
    if problem.relative_noise <= 0.008:
        return Pace(28, 12, 0.25, 1.0)
    return Pace(12, 8, 0.3, 1.0) if problem.relative_noise < 0.016 else Pace(6, 4, 0.4, 0.1)


def gram_share(problem: LinearProblem) -> float:
    """What the Gram matrix may take, by how far its noise would reach at a tenth: the edge over a unit eigenvalue.

    A precise matrix is worth 30 %: it whitens columns that nearly depend on each other. One that shows only its largest
    eigenvalues is worth 6 %, and one that shows next to nothing 3 %, to catch a step that would overshoot.
    """
    if problem.size is None:
        return 0.15
    edge = math.sqrt(2 * problem.width) * problem.width / (problem.mu * math.sqrt(0.1) * max(problem.size, 1.0))
    return 0.3 if edge <= 0.5 else 0.06 if edge <= 2.0 else 0.03


def histogram_share(sigma: float, size: float | None) -> float:
    """What the histogram of norms may take of a step: each bin known to 1 % of the records, or 3 % if that is dear.

    >>> histogram_share(12.0, 500), round(histogram_share(12.0, 2_000), 3), histogram_share(12.0, 100_000)
    (0.25, 0.04, 0.005)
    """
    if size is None:
        return 0.05
    noise = (sigma / max(size, 1.0)) ** 2
    return max(min(noise / 0.01**2, 0.03), min(noise / 0.03**2, 0.25), 0.005)


@dataclass(frozen=True, slots=True)
class Dpgd:
    """Whiten by a noisy second moment, start at its least-squares solution, then take clipped private steps.

    ::

        P = whitening(M),   b = P^T x,   w <- w + (C / slope) (sum b r min(1, C / |b r|) / C + noise) / n

    The first steps get less of the budget and clip at the median norm; the last ones are averaged and clip where
    clipping bias and privacy noise balance (``descent``). Every share follows from declared numbers. Where these say
    that noise dominates, the clip level only falls, and the result is drawn to 0 by what its noise explains.

    Guarantee:
        One Gaussian for the radius search's every round, one for the moments, one a step: mu^2 adds.

    Reference:
        full-batch private steps: Brown et al., ICML 2024; threshold by a private quantile: Andrew et al. 2021;
        clipping against noise: Rehn et al. 2026, Theorem 5.2.
    """

    gram_share: float | None = None  # None: by declared numbers
    pace: Pace | None = None

    def stages(self, problem: LinearProblem, left: float) -> dict[str, Event]:
        return {
            "gram": self.gram_plan(problem, left).event,
            "gradient": gaussian_events(self.schedule(problem, left).multipliers),
        }

    def solve(self, rows: Rows, problem: LinearProblem, left: float, size: float, run: CommittedRun) -> Solution:
        seen = gram_stage(rows, self.gram_plan(problem, left), size, run)
        schedule = self.schedule(problem, left)
        with run.stage("gradient") as receipt:
            found = walk(rows, seen, schedule, size=size, receipt=receipt, noise=run.noise)
        return found if schedule.rising else replace(found, theta=shrink(found))

    def gram_plan(self, problem: LinearProblem, left: float) -> GramPlan:
        return plan_gram(problem, left * self._gram_share(problem))

    def _gram_share(self, problem: LinearProblem) -> float:
        return gram_share(problem) if self.gram_share is None else self.gram_share

    def schedule(self, problem: LinearProblem, left: float) -> StepSchedule:
        pace = pace_of(problem) if self.pace is None else self.pace
        weights = [pace.early_weight] * pace.burn_in + [1.0] * pace.averaged
        share = left * (1 - self._gram_share(problem)) / sum(weights)
        sigmas = tuple(multiplier(problem, share * weight) for weight in weights)
        noise = math.sqrt(problem.width) * multiplier(problem, share * pace.averaged) / max(problem.size or 1.0, 1.0)
        share = histogram_share(min(sigmas), problem.size)
        rising = problem.relative_noise <= 0.08
        return StepSchedule(sigmas, pace.burn_in, noise, pace.alignment, share, rising=rising)


def walk(
    rows: Rows,
    seen: Gram,
    schedule: StepSchedule,
    *,
    size: float,
    receipt: Draws,
    noise: Noise,
    leave: Leave | None = None,
) -> Solution:
    """Whiten ``rows`` by the moments that were ``seen``, and take the steps from their least-squares solution."""
    whitening = seen.whitening()
    start, spread = _start(seen, whitening)
    white = GridRows.of(rows, lambda features: products(features, whitening))
    found = descend(
        white,
        start[:, None],
        schedule,
        threshold=0.8 * math.sqrt(seen.width),
        size=size,
        receipt=receipt,
        noise=noise,
        spread=spread,
        leave=leave,
    )
    return Solution(whitening @ found.weights[:, 0], seen, found.noise, whitening, found)


def shrink(found: Solution) -> Floats:
    """The steps' weights drawn to 0 by the part of their length that privacy noise explains."""
    assert found.whitening is not None
    assert found.descent is not None
    weights = found.descent.weights[:, 0]
    length = float(weights @ weights)
    kept = max(0.0, 1 - weights.size * found.noise**2 / length) if length > 0 else 0.0
    return np.asarray(found.whitening @ (kept * weights))


def _start(seen: Gram, whitening: Floats) -> tuple[Floats, float]:
    """The whitened least-squares solution of the noisy moments, shrunk by what their noise explains, and the standard
    deviation of that noise in each coordinate."""
    solution = whitening.T @ seen.cross
    noise = float(np.sum(whitening**2)) * seen.noise**2 / 2
    length = float(solution @ solution)
    kept = max(0.0, 1 - noise / length) if length > 0 else 0.0
    return np.asarray(kept * solution), kept * math.sqrt(noise / seen.width)
