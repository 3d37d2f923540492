"""BoostedAdaSSP: private ridge fits to the residuals, round after round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from dpilot.linear.descent import norm_quantile
from dpilot.linear.gram_matrix import GramPlan, gram_stage, plan_gram
from dpilot.linear.problem import CommittedRun, LinearProblem, gaussian_events, multiplier
from dpilot.linear.row_gradients import GridRows, HistogramClip, gradient_step
from dpilot.linear.rows import Rows
from dpilot.linear.solution import Solution
from dpilot.privacy.events import Event
from dpilot.statistics.rows import into_ball

__all__ = ["BoostedAdaSSP"]

_KAPPA: Final = 0.25  # weight of the histogram of residuals beside a gradient of 1
_QUANTILE: Final = 0.9


@dataclass(frozen=True, slots=True)
class BoostedAdaSSP:
    """One noisy Gram matrix H, then ``rounds`` of w <- w + H^-1 (X' clip(y - X w, c) + noise).

    ``clip`` fixes c in widths of the target, as published; None follows the private 0.9-quantile of the residuals,
    which the histogram of each round's release gives the next.

    Guarantee:
        rows are scaled to radius R and residuals r clipped to c, which is clipping R |r|, an upper bound of the
        gradient's norm, at R c: ``gradient_step``. Each of the
        ``rounds`` + 1 releases (radius apart) takes an equal part of the squared mu: the published method needs
        sigma = sqrt(T + 2) / mu, with a query of the smallest eigenvalue that flooring makes unnecessary; its code
        sets sigma = mu, which is not private.

    Reference:
        Tang et al., "Improved Differentially Private Regression via Gradient Boosting", SaTML 2024.
    """

    rounds: int = 8
    clip: float | None = None

    def stages(self, problem: LinearProblem, left: float) -> dict[str, Event]:
        return {"gram": self._gram(problem, left).event, "boosting": gaussian_events(self._sigmas(problem, left))}

    def solve(self, rows: Rows, problem: LinearProblem, left: float, size: float, run: CommittedRun) -> Solution:
        seen = gram_stage(rows, self._gram(problem, left), size, run)
        values, vectors = seen.floor_eigenvalues()
        radius, kappa = math.sqrt(seen.radius_squared), _KAPPA if self.clip is None else 0.0
        theta, level = np.zeros((seen.width, 1)), 1.0 if self.clip is None else self.clip
        short = GridRows.of(rows, lambda features: into_ball(features, radius))
        with run.stage("boosting") as receipt:
            for sigma in self._sigmas(problem, left):
                pull, bins = gradient_step(
                    short,
                    theta,
                    HistogramClip(radius * level, kappa),
                    noise_multiplier=sigma,
                    receipt=receipt,
                    noise=run.noise,
                    longest=radius,
                )
                theta = theta + vectors @ ((vectors.T @ pull) * (radius * level / size) / values[:, None])
                theta = np.clip(theta, -1e6, 1e6)
                if kappa:
                    level *= min(max(norm_quantile(bins / size, _QUANTILE), 0.2), 5.0)
        return Solution(theta[:, 0], seen)

    def _gram(self, problem: LinearProblem, left: float) -> GramPlan:
        return plan_gram(problem, left / (self.rounds + 1))

    def _sigmas(self, problem: LinearProblem, left: float) -> tuple[float, ...]:
        return (multiplier(problem, left / (self.rounds + 1)),) * self.rounds
