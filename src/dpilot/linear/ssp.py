"""Sufficient statistics perturbation: least squares from noisy moments, with no regularisation at all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpilot.linear.gram_matrix import gram_stage, plan_gram
from dpilot.linear.problem import CommittedRun, LinearProblem
from dpilot.linear.rows import Rows
from dpilot.linear.solution import Solution
from dpilot.privacy.events import Event

__all__ = ["SSP"]


@dataclass(frozen=True, slots=True)
class SSP:
    """The baseline: solve the noisy normal equations as they are.

    Where the noise hides the smallest eigenvalues it divides by noise, and fails as published. Unlike there, the radius
    is bought, the target is inside it, and the noise is symmetric.

    Reference:
        Sheffet, "Differentially private ordinary least squares", ICML 2017; Provan, section 4.2.
    """

    def stages(self, problem: LinearProblem, left: float) -> dict[str, Event]:
        return {"gram": plan_gram(problem, left).event}

    def solve(self, rows: Rows, problem: LinearProblem, left: float, size: float, run: CommittedRun) -> Solution:
        seen = gram_stage(rows, plan_gram(problem, left), size, run)
        theta = np.linalg.lstsq(seen.features, seen.cross, rcond=None)[0]
        return Solution(np.asarray(theta, dtype=np.float64), seen)
