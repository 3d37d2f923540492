"""Full-batch private steps with one clip level from beginning to end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpilot._arrays import Floats
from dpilot.linear.problem import CommittedRun, LinearProblem, gaussian_events, multiplier
from dpilot.linear.row_gradients import GridRows, HistogramClip, gradient_step
from dpilot.linear.rows import Rows
from dpilot.linear.solution import Solution
from dpilot.mechanism import Draws, Noise
from dpilot.privacy.events import Event

__all__ = ["FixedClip", "equal_steps", "fixed_steps"]


def equal_steps(problem: LinearProblem, share: float, steps: int) -> tuple[float, ...]:
    """Noise multipliers of ``steps`` equal steps that together take ``share`` of the squared mu."""
    return (multiplier(problem, share / steps),) * steps


def fixed_steps(
    rows: Rows, threshold: float, multipliers: tuple[float, ...], *, size: float, receipt: Draws, noise: Noise
) -> Floats:
    """Steps of length 1 from 0, each gradient clipped at ``threshold``; the mean of the last third.

    Guarantee:
        One Gaussian a step, that of ``gradient_step``.

    Edge cases:
        Weights that grow beyond 1e6 standardised units are pulled back there: a diverging run stays finite.
    """
    weights, state, cut = np.zeros((rows.columns - 1, 1)), HistogramClip(threshold), GridRows.of(rows)
    tail = []
    for step, sigma in enumerate(multipliers):
        gradient, _ = gradient_step(cut, weights, state, noise_multiplier=sigma, receipt=receipt, noise=noise)
        weights = np.clip(weights + threshold * gradient / size, -1e6, 1e6)
        if step >= len(multipliers) - max(1, len(multipliers) // 3):
            tail.append(weights[:, 0])
    return np.asarray(np.mean(tail, axis=0))


@dataclass(frozen=True, slots=True)
class FixedClip:
    """The paper's baseline, with full batches: one hand-picked ``threshold``."""

    threshold: float = 1.0
    steps: int = 30

    def stages(self, problem: LinearProblem, left: float) -> dict[str, Event]:
        return {"gradient": gaussian_events(equal_steps(problem, left, self.steps))}

    def solve(self, rows: Rows, problem: LinearProblem, left: float, size: float, run: CommittedRun) -> Solution:
        sigmas = equal_steps(problem, left, self.steps)
        with run.stage("gradient") as receipt:
            theta = fixed_steps(rows, self.threshold, sigmas, size=size, receipt=receipt, noise=run.noise)
        return Solution(theta)
