"""BoostedAdaSSP: private ridge fits to the residuals, round after round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from dpilot._arrays import Floats
from dpilot.linear.descent import norm_bins, norm_quantile
from dpilot.linear.gram import GramPlan, gram_stage, plan_gram
from dpilot.linear.problem import Door, Problem, multiplier, repeated
from dpilot.linear.rows import Rows, total
from dpilot.linear.solution import Solution
from dpilot.mechanism import Draws, Noise, release
from dpilot.privacy.events import Event
from dpilot.statistics.rows import into_ball

__all__ = ["BoostedAdaSSP"]

_KAPPA: Final = 0.25  # weight of the histogram of residuals beside a gradient of 1
_QUANTILE: Final = 0.9


@dataclass(frozen=True, slots=True)
class BoostedAdaSSP:
    """One noisy Gram matrix H, then ``rounds`` of w <- w + H^-1 (X' clip(y - X w, c) + noise).

    ``clip`` fixes c in widths of the target, as published; None follows the private 0.9-quantile of the residuals,
    which each round's release tells the next.

    Guarantee:
        rows are scaled to radius R and residuals clipped to c, so a record moves the sum by at most R c. Each of the
        ``rounds`` + 1 releases (radius apart) takes an equal part of the squared mu: the published method needs
        sigma = sqrt(T + 2) / mu, with a query of the smallest eigenvalue that flooring makes unnecessary; its code
        sets sigma = mu, which is not private.

    Reference:
        Tang et al., "Improved Differentially Private Regression via Gradient Boosting", SaTML 2024.
    """

    rounds: int = 8
    clip: float | None = None

    def stages(self, problem: Problem, left: float) -> dict[str, Event]:
        return {"gram": self._gram(problem, left).event, "boosting": repeated(self._sigmas(problem, left))}

    def solve(self, rows: Rows, problem: Problem, left: float, size: float, door: Door) -> Solution:
        seen = gram_stage(rows, self._gram(problem, left), size, door)
        values, vectors = seen.floored()
        radius = math.sqrt(seen.radius_squared)
        theta, level = np.zeros(seen.width), 1.0 if self.clip is None else self.clip
        with door.stage("boosting") as receipt:
            for sigma in self._sigmas(problem, left):
                pull, below = self._round(rows, theta, level, radius, sigma, receipt, door.noise)
                theta = theta + vectors @ ((vectors.T @ pull) * (radius * level / size) / values)
                theta = np.clip(theta, -1e6, 1e6)
                level = level if below is None else level * min(max(norm_quantile(below / size, _QUANTILE), 0.2), 5.0)
        return Solution(theta, seen)

    def _round(
        self, rows: Rows, theta: Floats, level: float, radius: float, sigma: float, receipt: Draws, noise: Noise
    ) -> tuple[Floats, Floats | None]:
        kappa = _KAPPA if self.clip is None else 0.0
        exact = total(rows, lambda values: _sums(values, theta, level, radius, kappa))
        bound = math.sqrt(1 + kappa**2)
        noisy = release(exact, bound=bound, noise_multiplier=sigma, receipt=receipt, noise=noise)
        return noisy[: theta.size], noisy[theta.size :] / kappa if kappa else None

    def _gram(self, problem: Problem, left: float) -> GramPlan:
        return plan_gram(problem, left / (self.rounds + 1))

    def _sigmas(self, problem: Problem, left: float) -> tuple[float, ...]:
        return (multiplier(problem, left / (self.rounds + 1)),) * self.rounds


def _sums(values: Floats, theta: Floats, level: float, radius: float, kappa: float) -> Floats:
    features = into_ball(values[:, :-1], radius)
    residual = values[:, -1] - features @ theta
    pull = features.T @ np.clip(residual, -level, level) / (radius * level)
    return np.concatenate([pull, kappa * norm_bins(np.abs(residual) / level)]) if kappa else pull
