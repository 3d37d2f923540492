"""AdaClip, one-shot: a private quantile of the gradient norms at 0, then steps clipped there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from dpilot._arrays import Floats
from dpilot.linear.fixed import equal_steps, fixed_steps
from dpilot.linear.problem import CommittedRun, LinearProblem, gaussian_events, multiplier
from dpilot.linear.rows import Rows
from dpilot.linear.solution import Solution
from dpilot.mechanism import Draws, Noise
from dpilot.privacy.events import Event
from dpilot.statistics import log_grid, quantile, quantile_event

__all__ = ["AdaClip", "clip_level"]

_GRID: Final = log_grid(2.0**-12, 2.0**12, per_octave=4)


def clip_level(rows: Rows, q: float, *, noise_multiplier: float, receipt: Draws, noise: Noise) -> float:
    """The private ``q``-quantile of the gradient norms at weights 0."""
    norms = rows.map(_norms, 1)
    found = quantile(norms.chunks(), q, grid=_GRID, noise_multiplier=noise_multiplier, receipt=receipt, noise=noise)
    return float(found[0])


@dataclass(frozen=True, slots=True)
class AdaClip:
    """Spend ``share`` on a noisy-count ``quantile`` of norms over all records, the rest on ``steps`` full batches.

    As published (Laplace noise on the median of a subsample) it is not private: a median can move by the whole range.
    A valid search needs about 1 % of the squared mu, not 10 % of epsilon.

    Reference:
        Provan, section 4.3; Andrew et al. 2021; Pichapati et al. 2019.
    """

    share: float = 0.01
    quantile: float = 0.5
    steps: int = 30

    def stages(self, problem: LinearProblem, left: float) -> dict[str, Event]:
        search = quantile_event(multiplier(problem, left * self.share), grid=_GRID)
        return {"threshold": search, "gradient": gaussian_events(self._steps(problem, left))}

    def solve(self, rows: Rows, problem: LinearProblem, left: float, size: float, run: CommittedRun) -> Solution:
        sigma = multiplier(problem, left * self.share)
        with run.stage("threshold") as receipt:
            level = clip_level(rows, self.quantile, noise_multiplier=sigma, receipt=receipt, noise=run.noise)
        with run.stage("gradient") as receipt:
            sigmas = self._steps(problem, left)
            theta = fixed_steps(rows, level, sigmas, size=size, receipt=receipt, noise=run.noise)
        return Solution(theta, threshold=level)

    def _steps(self, problem: LinearProblem, left: float) -> tuple[float, ...]:
        return equal_steps(problem, left * (1 - self.share), self.steps)


def _norms(values: Floats) -> Floats:
    return np.asarray(np.linalg.norm(values[:, :-1], axis=1) * np.abs(values[:, -1]))[:, None]
