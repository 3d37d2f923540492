"""Logistic regression by the same whitened, adaptively clipped private steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpilot._arrays import Floats
from dpilot.linear.descent import StepSchedule, descend
from dpilot.linear.dpgd import histogram_share
from dpilot.linear.gram_matrix import gram_stage, plan_gram
from dpilot.linear.problem import CommittedRun, LinearProblem, gaussian_events, multiplier
from dpilot.linear.row_gradients import GridRows, Residual
from dpilot.linear.rows import Rows
from dpilot.linear.solution import Solution
from dpilot.numerics.products import products
from dpilot.privacy.events import Event

__all__ = ["LogisticSteps", "probabilities"]

_BURN_IN_WEIGHT = 0.25


def probabilities(scores: Floats) -> Floats:
    """Of each class, from one score (two classes: the second's) or one a class.

    >>> probabilities(np.array([[0.0]])).tolist()
    [[0.5, 0.5]]
    """
    if scores.shape[1] == 1:
        scores = np.column_stack([np.zeros(scores.shape[0]), scores])
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


@dataclass(frozen=True, slots=True)
class LogisticSteps:
    """Steps on the logistic loss; the target column holds the code of the class, 0 .. classes - 1.

    Böhning's bound, curvature at most 1/4 in whitened coordinates, gives the step length. Gradients are bounded by
    nature, and clipping far below that bound biases probabilities, so the clip level stays high.

    Reference:
        curvature: Böhning, "Multinomial logistic regression algorithm", 1992.
    """

    classes: int
    gram_share: float = 0.15
    steps: int = 30
    burn_in: int = 22

    def stages(self, problem: LinearProblem, left: float) -> dict[str, Event]:
        moments = plan_gram(problem, left * self.gram_share).event
        return {"gram": moments, "gradient": gaussian_events(self._schedule(problem, left).multipliers)}

    def solve(self, rows: Rows, problem: LinearProblem, left: float, size: float, run: CommittedRun) -> Solution:
        features = rows.map(_without_target, rows.columns)
        seen = gram_stage(features, plan_gram(problem, left * self.gram_share), size, run)
        whitening = seen.whitening()
        white = GridRows.of(rows, lambda features: products(features, whitening))
        with run.stage("gradient") as receipt:
            found = descend(
                white,
                np.zeros((problem.width, self._outputs)),
                self._schedule(problem, left),
                threshold=0.7 * math.sqrt(problem.width),
                size=size,
                receipt=receipt,
                noise=run.noise,
                residual=_pull(self.classes),
            )
        return Solution(whitening @ found.weights, seen, found.noise, whitening, found)

    @property
    def _outputs(self) -> int:
        return 1 if self.classes <= 2 else self.classes

    def _schedule(self, problem: LinearProblem, left: float) -> StepSchedule:
        weights = [_BURN_IN_WEIGHT] * self.burn_in + [1.0] * (self.steps - self.burn_in)
        share = left * (1 - self.gram_share) / sum(weights)
        sigmas = tuple(multiplier(problem, share * weight) for weight in weights)
        averaged = multiplier(problem, share * (self.steps - self.burn_in))
        noise = 4 * math.sqrt(problem.width * self._outputs) * averaged / max(problem.size or 1.0, 1.0)
        part = histogram_share(min(sigmas), problem.size)
        return StepSchedule(sigmas, self.burn_in, noise, alignment=4.0, share=part, curvature=0.25, early=0.9)


def _without_target(values: Floats) -> Floats:
    return np.column_stack([values[:, :-1], np.zeros(values.shape[0])])


def _pull(classes: int) -> Residual:
    def residual(target: Floats, scores: Floats) -> Floats:
        wanted = target[:, None] == np.arange(classes if classes > 2 else 2)
        pulls = wanted - probabilities(scores)
        return np.asarray(pulls if classes > 2 else pulls[:, 1:])

    return residual
