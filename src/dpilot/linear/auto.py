"""The default: steps and sufficient statistics from one budget, and what the noisy moments say about both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from dpilot.linear.dpgd import Dpgd, gram_share
from dpilot.linear.gram import Gram
from dpilot.linear.problem import Door, Problem
from dpilot.linear.rows import Rows
from dpilot.linear.solution import Solution
from dpilot.privacy.events import Event
from dpilot.statistics.rows import Floats

__all__ = ["Auto", "chosen", "shrunk"]

_HOPELESS: Final = 0.1  # coefficients over mu times size
_DROWNED: Final = 0.5  # squared widths of the target


@dataclass(frozen=True, slots=True)
class Auto:
    """Run ``dpgd`` with a larger share for the Gram matrix, then choose by the risk that the matrix itself shows.

    ::

        risk(theta) = [theta, -1] M [theta, -1]^T,    + 2 sum_i noise^2 (1 + |theta|^2) / (2 eigenvalue_i) for a theta
                                                        that was fitted to the noise of M

    Candidates: the averaged steps, ridge solutions of M at three floors, and predicting the centre. All are functions
    of releases that are paid for already, so choosing costs nothing.

    Guards:
        steps are shrunk by what their own noise explains (James-Stein); another candidate must beat them, and the
        centre must beat the chosen one, by more than the noise of the comparison.
    """

    def stages(self, problem: Problem, left: float) -> dict[str, Event]:
        return self._steps(problem).stages(problem, left)

    def solve(self, rows: Rows, problem: Problem, left: float, size: float, door: Door) -> Solution:
        found = self._steps(problem).solve(rows, problem, left, size, door)
        hopeless = problem.width / (problem.mu * size) > _HOPELESS
        return chosen(found, problem.intercept, hopeless=hopeless)

    def _steps(self, problem: Problem) -> Dpgd:
        share = gram_share(problem)
        return Dpgd(gram_share=0.65 if share >= 0.3 else share)


def chosen(found: Solution, intercept: bool, *, hopeless: bool = False) -> Solution:
    """The candidate with the least risk, as far as the noise lets one tell; the centre where declared numbers say that
    it lets one tell nothing (``hopeless``)."""
    assert found.gram is not None
    seen = found.gram
    candidates = {"steps": shrunk(found)}
    risks = {"steps": seen.risk(candidates["steps"])}
    for floor in (1.0, 2.0, 4.0):
        name = f"moments, floor {floor:g}"
        candidates[name] = seen.solution(floor)
        risks[name] = seen.risk(candidates[name]) + _optimism(seen, candidates[name], floor)
    best = min(risks, key=lambda name: risks[name])
    if risks[best] > risks["steps"] - seen.difference_noise(candidates["steps"], candidates[best]):
        best = "steps"
    candidates["centre"] = _centre(seen, intercept)
    margin = seen.difference_noise(candidates[best], candidates["centre"])
    if risks[best] > seen.risk(candidates["centre"]) + margin or _drowned(found) or hopeless:
        best = "centre"
    return replace(found, theta=candidates[best], choice=best)


def _drowned(found: Solution) -> bool:
    """Whether privacy noise alone moves predictions by most of a width of the target."""
    return found.descent is not None and found.descent.weights.size * found.noise**2 > _DROWNED


def shrunk(found: Solution) -> Floats:
    """The steps' weights drawn to 0 by the part of their length that privacy noise explains."""
    assert found.whitening is not None
    assert found.descent is not None
    weights = found.descent.weights[:, 0]
    length = float(weights @ weights)
    kept = max(0.0, 1 - weights.size * found.noise**2 / length) if length > 0 else 0.0
    return np.asarray(found.whitening @ (kept * weights))


def _optimism(seen: Gram, theta: Floats, floor: float) -> float:
    """How much lower the risk of a fitted theta looks than it is, the noise being in both."""
    values = np.maximum(np.linalg.eigvalsh(seen.features), max(floor * seen.edge, 1e-12))
    return float(np.sum(seen.noise**2 * (1 + theta @ theta) / values))


def _centre(seen: Gram, intercept: bool) -> Floats:
    """The coefficients that predict one value for all: the noisy mean, if there is an intercept."""
    theta = np.zeros(seen.width)
    if intercept and abs(seen.cross[-1]) > 2 * seen.noise:
        theta[-1] = seen.cross[-1] / max(float(seen.features[-1, -1]), 0.5)
    return theta
