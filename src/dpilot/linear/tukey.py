"""TukeyEM: many small least-squares fits on disjoint records, and a private point deep among them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpilot._arrays import Floats
from dpilot.keys import Chain, fresh_key
from dpilot.linear.problem import CommittedRun, LinearProblem
from dpilot.linear.rows import Rows
from dpilot.linear.solution import Solution
from dpilot.mechanism import Noise, release_sample
from dpilot.privacy.events import ApproxDP, Event
from dpilot.privacy.gaussian import gdp_delta

__all__ = ["TukeyEM", "depths", "distance", "log_volumes"]


@dataclass(frozen=True, slots=True)
class TukeyEM:
    """Each record picks one of m models by its own coin; propose-test-release, then the exponential mechanism.

    ::

        box(i) = product over coordinates of [i-th smallest, i-th largest]     depth(x) = largest i with x in box(i)
        test     k + Laplace(1 / e) > log(1 / (2 d)) / e                        k: models that may change, at least
        release  density proportional to exp(e depth / 2) on depth >= m / 4     e = epsilon / 2, d = delta / 2

    Guarantee:
        (epsilon, delta)-DP. One record changes one model: box(i + 1) of one list lies in box(i) of the other, so
        every depth moves by at most 1 and k by at most 1, and some depths go up while others go down. The density
        and its normaliser move by exp(e / 2) each, hence the half; what the edge of the region adds is at most
        (1 + exp(e)) V(t - 1) / V(t + g) exp(-g e / 2), t = m / 4, which is below d wherever k is not negative. A list
        with k negative passes the test with probability below d. The test costs e and the release (e, d). It has no
        better accountant, so it enters the total by its sum, beside what scaling takes.

    Edge cases:
        A test that does not pass gives coefficients 0: predict the centre. It passes with about 1,000 models or more,
        of at least as many records each as there are coefficients.
        The Laplace scale is 1 / e: the published code draws it with scale e, and costs 2.4 at a nominal 1.1.

    Reference:
        Amin, Joseph, Ribero, Vassilvitskii, "Easy Differentially Private Linear Regression", ICLR 2023.
    """

    models: int | None = None
    hardened: ClassVar[bool] = False  # its law is a continuous one, which the records decide

    def stages(self, problem: LinearProblem, left: float) -> dict[str, Event]:
        return {"tukey": _event(problem, left)}

    def solve(self, rows: Rows, problem: LinearProblem, left: float, size: float, run: CommittedRun) -> Solution:
        del size  # nothing is divided by it
        event = _event(problem, left)
        fits = _fits(rows, self._models(problem))
        with run.stage("tukey") as receipt:
            theta = release_sample(
                lambda noise: _deep_point(fits, event.epsilon / 2, event.delta / 2, noise),
                probes=lambda: _probe(fits, event.epsilon / 2, event.delta / 2),
                sensitivity=1.0,
                event=event,
                receipt=receipt,
                noise=run.noise,
            )
            return Solution(np.asarray(theta))

    def _models(self, problem: LinearProblem) -> int:
        if self.models is not None:
            return self.models
        size = 20_000.0 if problem.size is None else problem.size
        return int(min(max(size // max(problem.width, 1), 8), 2_000))


def _probe(fits: Floats, epsilon: float, delta: float) -> Floats:
    """The depths of a few fixed points, and the distance: the law of the deep point follows from such numbers.

    One record changes one model, which moves each by at most 1 (``tests/linear/test_tukey.py``).
    """
    places = np.linspace(-2.0, 2.0, 81)
    return np.append(depths(fits, places), distance(log_volumes(fits), epsilon, delta))


def depths(fits: Floats, places: Floats) -> Floats:
    """The depth of the point whose coordinates are all equal, for each of ``places``: the last box that holds it.

    >>> depths(np.array([[1.0], [2.0], [3.0], [4.0]]), np.array([0.0, 1.0, 2.5])).tolist()
    [0.0, 1.0, 2.0]
    """
    below = np.array([(fits <= place).sum(axis=0).min() for place in places])
    above = np.array([(fits >= place).sum(axis=0).min() for place in places])
    return np.asarray(np.minimum(below, above), dtype=np.float64)


def _event(problem: LinearProblem, left: float) -> ApproxDP:
    """What scaling and size leave, as a pair: half of delta stays theirs, and epsilon is what their mu does not use."""
    budget = problem.budget
    if left == 1.0:
        return ApproxDP(budget.epsilon, budget.delta)
    used = problem.mu * math.sqrt(1 - left)
    low, high = 0.0, budget.epsilon
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if gdp_delta(used, middle) > budget.delta / 2 else (low, middle)
    return ApproxDP(max(budget.epsilon - high * (1 + 1e-6), 1e-9), budget.delta * (0.5 - 1e-6))


def _fits(rows: Rows, models: int) -> Floats:
    """Least squares on the records of each model, (models, coefficients)."""
    coins = Chain(fresh_key("models")).generator("models")
    width = rows.columns - 1
    gram, cross = np.zeros((models, width, width)), np.zeros((models, width))
    for values in rows.chunks():
        picked = np.asarray(coins.integers(models, size=values.shape[0]), dtype=np.int64)
        order = np.argsort(picked, kind="stable")
        ends = np.searchsorted(picked[order], np.arange(models + 1)).tolist()
        for model in range(models):
            part = values[order[ends[model] : ends[model + 1]]]
            gram[model] += part[:, :-1].T @ part[:, :-1]
            cross[model] += part[:, :-1].T @ part[:, -1]
    inverse = np.linalg.pinv(gram, rcond=1e-10, hermitian=True)
    return np.asarray(np.einsum("mij,mj->mi", inverse, cross))


def log_volumes(fits: Floats) -> Floats:
    """log volume of box(i), i = 1 .. m / 2, at index i - 1; minus infinity where a side is empty."""
    ordered = np.sort(fits, axis=0)
    half = ordered.shape[0] // 2
    sides = ordered[::-1][:half] - ordered[:half]
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.maximum(sides, 0.0)).sum(axis=1))


def distance(volumes: Floats, epsilon: float, delta: float) -> int:
    """How many models may change before the release stops being safe, at least; -1 where it is not safe now."""
    start = max(2 * volumes.size // 4, 1)
    limit = math.log(delta / (8 * math.exp(epsilon)))
    for changed in range(start):
        if not _safe(volumes, start, changed, epsilon, limit):
            return changed - 1
    return start - 1


def _safe(volumes: Floats, start: int, changed: int, epsilon: float, limit: float) -> bool:
    """Whether some g has V(t - k - 1) / V(t + k + g + 1) e^(-g epsilon / 2) <= delta / (8 e^epsilon)."""
    outer = start - changed - 1
    if outer < 1 or not math.isfinite(volumes[outer - 1]):
        return False
    gaps = np.arange(1, volumes.size - start - changed)
    if gaps.size == 0:
        return False
    return bool(np.any(volumes[outer - 1] - volumes[start + changed + gaps] - gaps * epsilon / 2 <= limit))


def _deep_point(fits: Floats, epsilon: float, delta: float, noise: Noise) -> Floats:
    volumes = log_volumes(fits)
    far = distance(volumes, epsilon, delta) + _laplace(1 / epsilon, noise)
    if far <= math.log(1 / (2 * delta)) / epsilon:
        return np.zeros(fits.shape[1])
    start = max(fits.shape[0] // 4, 1)
    depths = np.arange(start, volumes.size + 1)
    rate = epsilon / 2  # depths move both ways when one model changes
    steps = np.where(depths == start, 0.0, math.log(-math.expm1(-rate)))  # e^(r i) - e^(r (i - 1)), over e^(r i)
    depth = int(depths[noise.choice(volumes[depths - 1] + rate * depths + steps)])
    ordered = np.sort(fits, axis=0)
    low, high = ordered[depth - 1], ordered[-depth]
    return np.asarray(low + _uniform(low.size, noise) * (high - low))


def _uniform(size: int, noise: Noise) -> Floats:
    from scipy.special import ndtr

    return np.asarray(ndtr(noise.gaussian([np.zeros(size)], bound=1.0, noise_multiplier=1.0)[0]))


def _laplace(scale: float, noise: Noise) -> float:
    centred = float(_uniform(1, noise)[0]) - 0.5
    return -scale * math.copysign(1.0, centred) * math.log1p(-2 * abs(centred))
