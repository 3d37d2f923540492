"""The default: steps and sufficient statistics from one budget, and what the noisy moments say about both."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np

from dpilot._arrays import Floats
from dpilot.hardened import grid_size
from dpilot.linear.descent import Leave, StepSchedule
from dpilot.linear.dpgd import Dpgd, gram_share, shrink, walk
from dpilot.linear.gram_matrix import Gram, average_grams, gram_stage
from dpilot.linear.problem import CommittedRun, LinearProblem, multiplier
from dpilot.linear.rows import Rows, total
from dpilot.linear.solution import Solution
from dpilot.linear.standardise import REACH
from dpilot.mechanism import Draws, Noise, release
from dpilot.numerics.grid import cut
from dpilot.numerics.products import products
from dpilot.privacy.events import Event, Gaussian

__all__ = ["Auto", "choose_candidate"]

_FLOORS: Final = (1.0, 2.0, 4.0)
_GAIN: Final = 4.0  # squared widths of the target, to which what a record gains by the model is clipped


@dataclass(frozen=True, slots=True)
class Auto:
    """Run ``dpgd`` with a larger share for the Gram matrix, and choose by the risk that the matrix itself shows.

    When the burn-in of the steps ends and a ridge solution of the matrix already looks better than they do, the
    releases that are left buy the same moments again instead of steps (``again``): the price of each is a Gaussian
    either way. What was seen decides what is released next, and never with how much noise.

    ::

        risk(theta) = [theta, -1] M [theta, -1]^T,    + 2 sum_i noise^2 (1 + |theta|^2) / (2 eigenvalue_i) for a theta
                                                        that was fitted to the noise of M

    Candidates: the averaged steps, ridge solutions of M at three floors, and predicting the centre. All are functions
    of releases that are paid for already, so choosing costs nothing.

    Guards:
        steps are shrunk by what their own noise explains (James-Stein); another candidate must beat them, and the
        centre must beat the chosen one, by more than the noise of the comparison. Where declared numbers leave no hope,
        or the clip level of noisy steps never fell, it is the centre in any case. At last a ``check`` is bought: how
        much squared error the chosen one saves beside the centre. The chosen one is drawn to the centre by as much as
        that, averaged with what the matrix says of it, is below 0: all the way at two standard deviations.

    Guarantee:
        The check is one Gaussian: a record's gain is clipped to [-4, 4] squared widths, so its sum moves by at most 4.
        The moments and the steps: see ``dpgd``.
    """

    share: float = 0.65  # of the Gram matrix, where it can be precise
    again: bool = True  # moments, where they look better than the steps
    abstains: ClassVar[bool] = True  # predicts the centre where declared numbers leave no hope

    def stages(self, problem: LinearProblem, left: float) -> dict[str, Event]:
        check = left * _check_share(problem)
        return {**self._steps(problem).stages(problem, left - check), "check": Gaussian(multiplier(problem, check))}

    def solve(self, rows: Rows, problem: LinearProblem, left: float, size: float, run: CommittedRun) -> Solution:
        check = left * _check_share(problem)
        found = self._fit(rows, problem, left - check, size, run)
        sigma = multiplier(problem, check)
        with run.stage("check") as receipt:
            gain = _gain(rows, found, sigma, problem.intercept, receipt, run.noise)
        return _draw_to_centre(found, problem.intercept, _GAIN * gain / size, _GAIN * sigma / size)

    def _fit(self, rows: Rows, problem: LinearProblem, left: float, size: float, run: CommittedRun) -> Solution:
        steps = self._steps(problem)
        schedule = steps.schedule(problem, left)
        seen = gram_stage(rows, steps.gram_plan(problem, left), size, run)
        with run.stage("gradient") as receipt:
            leave = _leave(seen) if self.again else None
            found = walk(rows, seen, schedule, size=size, receipt=receipt, noise=run.noise, leave=leave)
            rest = schedule.multipliers[len(found.descent.thresholds) :] if found.descent else ()
            if rest:
                more = average_grams(rows, seen, rest, size=size, receipt=receipt, noise=run.noise)
                found = replace(found, gram=more)
        return choose_candidate(found, problem.intercept, hopeless=problem.hopeless or _is_astray(found, schedule))

    def _steps(self, problem: LinearProblem) -> Dpgd:
        share = gram_share(problem)
        return Dpgd(gram_share=self.share if share >= 0.3 else share)


def _check_share(problem: LinearProblem) -> float:
    """What the check may take: the mean gain known to a tenth of a squared width, or what a 25th of the budget buys."""
    if problem.size is None:
        return 0.01
    return min(max((10 * _GAIN / (problem.mu * max(problem.size, 1.0))) ** 2, 0.002), 0.04)


def _gain(rows: Rows, found: Solution, sigma: float, intercept: bool, receipt: Draws, noise: Noise) -> float:
    """The noisy sum over records of the squared error that ``found`` saves beside the centre, in units of 4."""
    assert found.gram is not None
    thetas, grid = np.column_stack([found.theta, _centre(found.gram, intercept)]), grid_size(1.0, sigma)

    def gains(values: Floats) -> Floats:
        target = np.clip(values[:, -1:], -REACH, REACH)
        errors = (target - np.clip(products(values[:, :-1], thetas), -REACH, REACH)) ** 2
        return np.asarray(cut(np.clip((errors[:, 1] - errors[:, 0]) / _GAIN, -1.0, 1.0), grid).sum())

    # |clip(gain / 4, -1, 1)| <= 1 (tests/linear/test_privacy.py::test_one_more_record_moves_releases_within_their_
    # bounds_and_nothing_else)
    return release(float(total(rows, gains)), bound=1.0, noise_multiplier=sigma, receipt=receipt, noise=noise)


def _draw_to_centre(found: Solution, intercept: bool, gain: float, noise: float) -> Solution:
    """The solution drawn to the centre by how far below 0 its gain is, as ``gain`` and the moments tell it together.

    ::

        centre + kept (theta - centre),    kept = 1 + gain / (2 noise) within [0, 1]

    What is half way to the centre loses a quarter of what a true signal gains, and of what noise alone costs it keeps a
    quarter: cutting at 0 instead throws away good models wherever the gain is within the noise.
    """
    seen = found.gram
    assert seen is not None
    centre = _centre(seen, intercept)
    other = seen.difference_noise(found.theta, centre)
    if other == 0:
        return found
    weight = other**2 / (noise**2 + other**2)  # by inverse variances
    gain = weight * gain + (1 - weight) * (seen.risk(centre) - seen.risk(found.theta))
    kept = min(max(1 + gain / (2 * noise * math.sqrt(weight)), 0.0), 1.0)
    if kept == 1:
        return found
    choice = f"{found.choice}, drawn to the centre" if kept > 0 else "centre"
    return replace(found, theta=centre + kept * (found.theta - centre), choice=choice)


def _leave(seen: Gram) -> Leave:
    """Whether the moments already show a solution of theirs to be better than the steps, beyond what noise explains."""

    def better(weights: Floats, noise: float) -> bool:
        if _is_mostly_noise(weights, noise):
            return False
        theta = np.asarray(seen.whitening() @ weights[:, 0])
        best, risk = min(_ridges(seen).values(), key=lambda each: each[1])
        averaged = seen.risk(theta) - weights.size * noise**2  # the noise of one step, which the average has not
        return risk < averaged - seen.difference_noise(theta, best)

    return better


def _ridges(seen: Gram) -> dict[str, tuple[Floats, float]]:
    """Ridge solutions of the moments, each with its risk."""
    found = {}
    for floor in _FLOORS:
        theta = seen.solution(floor)
        found[f"moments, floor {floor:g}"] = theta, seen.risk(theta) + _optimism(seen, theta, floor)
    return found


def choose_candidate(found: Solution, intercept: bool, *, hopeless: bool = False) -> Solution:
    """The candidate with the least risk, as far as the noise lets one tell; the centre where it lets one tell nothing
    (``hopeless``)."""
    assert found.gram is not None
    seen, steps = found.gram, shrink(found)
    candidates = {"steps": (steps, seen.risk(steps)), **_ridges(seen)}
    best = min(candidates, key=lambda name: candidates[name][1])
    if candidates[best][1] > candidates["steps"][1] - seen.difference_noise(steps, candidates[best][0]):
        best = "steps"
    theta, risk = candidates[best]
    noisy = found.descent is not None and _is_mostly_noise(found.descent.weights, found.noise)
    centre = _centre(seen, intercept)
    if risk > seen.risk(centre) + seen.difference_noise(theta, centre) or noisy or hopeless:
        best, theta = "centre", centre
    return replace(found, theta=theta, choice=best)


def _is_astray(found: Solution, schedule: StepSchedule) -> bool:
    """Whether a clip level that only falls never did: norms that do not shrink are those of steps that learn nothing,
    or lead away."""
    assert found.descent is not None
    levels = found.descent.thresholds
    return not schedule.rising and levels[-1] >= levels[0]


def _is_mostly_noise(weights: Floats, noise: float) -> bool:
    """Whether privacy noise alone moves predictions by most of a width of the target."""
    return bool(weights.size * noise**2 > 0.5)


def _optimism(seen: Gram, theta: Floats, floor: float) -> float:
    """How much lower the risk of a fitted theta looks than it is, the noise being in both."""
    values = np.maximum(np.linalg.eigvalsh(seen.features), max(floor * seen.edge, 1e-12))
    return float(np.sum(seen.noise**2 * (1 + theta @ theta) / values))


def _centre(seen: Gram, intercept: bool) -> Floats:
    """The coefficients that predict one value for all: the noisy mean, if there is an intercept.

    From the centre that scaling found it moves by the part that its noise does not explain, twice over.
    """
    theta = np.zeros(seen.width)
    mean = float(seen.cross[-1])
    if intercept and abs(mean) > 2 * seen.noise:
        theta[-1] = mean * (1 - (2 * seen.noise / mean) ** 2) / max(float(seen.features[-1, -1]), 0.5)
    return theta
