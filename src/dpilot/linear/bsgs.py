"""Budget-split grid search: short private runs for a few clip levels, private scores, a full run with the best."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpilot._arrays import Floats
from dpilot.hardened import grid_size
from dpilot.linear.fixed import equal_steps, fixed_steps
from dpilot.linear.problem import CommittedRun, LinearProblem, gaussian_events, multiplier
from dpilot.linear.rows import Rows, total
from dpilot.linear.solution import Solution
from dpilot.mechanism import release
from dpilot.numerics.grid import cut
from dpilot.numerics.products import products
from dpilot.privacy.events import Composed, Event, Gaussian

__all__ = ["BSGS"]

_LOSS_BOUND = 4.0  # in squared widths of the target: a score of 1 is no better than a guess two widths off


@dataclass(frozen=True, slots=True)
class BSGS:
    """Every candidate's run and score is paid; scores are sums of clipped losses centred by 1/2.

    ::

        score = sum over records of (min(loss, 4) / 4 - 1/2),      sensitivity 1/2

    As published (Laplace noise on an unbounded squared error, runs not charged) it is not private.

    Reference:
        Provan, section 4.4: a third of the budget on candidates 0.1, 0.5, 1, 5, 10.
    """

    candidates: tuple[float, ...] = (0.1, 0.5, 1.0, 5.0, 10.0)
    share: float = 1 / 3
    score_share: float = 0.05
    short: int = 8
    steps: int = 30

    def stages(self, problem: LinearProblem, left: float) -> dict[str, Event]:
        trial = Composed([*map(Gaussian, self._short(problem, left)), Gaussian(self._score(problem, left))])
        trials: dict[str, Event] = {f"trial {level:g}": trial for level in self.candidates}
        return {**trials, "gradient": gaussian_events(self._full(problem, left))}

    def solve(self, rows: Rows, problem: LinearProblem, left: float, size: float, run: CommittedRun) -> Solution:
        scores = {level: self._trial(rows, level, problem, left, size, run) for level in self.candidates}
        best = min(scores, key=lambda level: scores[level])
        with run.stage("gradient") as receipt:
            theta = fixed_steps(rows, best, self._full(problem, left), size=size, receipt=receipt, noise=run.noise)
        return Solution(theta, threshold=best)

    def _trial(
        self, rows: Rows, level: float, problem: LinearProblem, left: float, size: float, run: CommittedRun
    ) -> float:
        with run.stage(f"trial {level:g}") as receipt:
            short = self._short(problem, left)
            theta = fixed_steps(rows, level, short, size=size, receipt=receipt, noise=run.noise)
            sigma = self._score(problem, left)
            grid = grid_size(0.5, sigma)
            exact = float(total(rows, lambda values: np.asarray(cut(_losses(values, theta), grid).sum())))
            return release(exact, bound=0.5, noise_multiplier=sigma, receipt=receipt, noise=run.noise)

    def _short(self, problem: LinearProblem, left: float) -> tuple[float, ...]:
        part = left * self.share * (1 - self.score_share) / len(self.candidates)
        return equal_steps(problem, part, self.short)

    def _score(self, problem: LinearProblem, left: float) -> float:
        return multiplier(problem, left * self.share * self.score_share / len(self.candidates))

    def _full(self, problem: LinearProblem, left: float) -> tuple[float, ...]:
        return equal_steps(problem, left * (1 - self.share), self.steps)


def _losses(values: Floats, theta: Floats) -> Floats:
    loss = (values[:, -1] - products(values[:, :-1], theta)) ** 2
    return np.asarray(np.minimum(loss, _LOSS_BOUND) / _LOSS_BOUND - 0.5)
