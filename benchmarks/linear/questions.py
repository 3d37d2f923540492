"""The questions Provan leaves open: the split, the clip level, the quantile, estimating it or iterating around it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.linear.common import Array, coefficients, fitted, middle, paper, repeated, table
from dpilot.linear.adaclip import _GRID, AdaClip, _norms, clip_level
from dpilot.linear.boosted import BoostedAdaSSP
from dpilot.linear.dpgd import Dpgd
from dpilot.linear.fitting import Method
from dpilot.linear.fixed import FixedClip, equal_steps, fixed_steps
from dpilot.linear.problem import CommittedRun, LinearProblem, multiplier
from dpilot.linear.problem import gaussian_events as repeated_steps
from dpilot.linear.rows import Rows, total
from dpilot.linear.solution import Solution
from dpilot.mechanism import release
from dpilot.privacy.events import Composed, Event, Gaussian
from dpilot.statistics import quantile_event

D, N = 50, 5_000
SHARES = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
LEVELS = tuple(10.0 ** np.arange(-2.0, 2.01, 0.25))
HERE = Path(__file__).parent

Data = Callable[[int], tuple[Array, Array, Array]]


def distances(method: Method, data: Data, epsilon: float, seeds: int) -> list[float]:
    def trial(seed: int) -> float:
        X, y, weights = data(seed)
        found = fitted(method, X, y, epsilon, bounds="standardised", intercept=False)
        return float(np.linalg.norm(coefficients(found) - weights))

    return repeated(trial, seeds)


def plain(seed: int) -> tuple[Array, Array, Array]:
    return paper(N, D, seed)


def heavy(n: int, d: int) -> Data:
    def data(seed: int) -> tuple[Array, Array, Array]:
        rng = np.random.default_rng(20_000 + seed)
        X, weights = rng.standard_t(3, size=(n, d)) / np.sqrt(3), np.ones(d) / np.sqrt(d)
        return X, X @ weights + 0.1 * rng.standard_t(3, size=n) / np.sqrt(3), weights

    return data


def irrelevant(n: int, d: int) -> Data:
    def data(seed: int) -> tuple[Array, Array, Array]:
        rng = np.random.default_rng(30_000 + seed)
        X, weights = rng.normal(size=(n, d)), np.zeros(d)
        weights[: max(d // 10, 1)] = 1 / np.sqrt(max(d // 10, 1))
        return X, X @ weights + 0.1 * rng.normal(size=n), weights

    return data


def of(n: int, d: int) -> Data:
    return lambda seed: paper(n, d, seed)


def split(seeds: int) -> None:
    rows = []
    for share in SHARES:
        levels: list[float] = []

        def trial(seed: int, share: float = share, levels: list[float] = levels) -> float:
            X, y, weights = plain(seed)
            found = fitted(AdaClip(share=share), X, y, 1.0, bounds="standardised", intercept=False)
            levels.append(float(found.solution.threshold or 0.0))
            return float(np.linalg.norm(coefficients(found) - weights))

        errors = repeated(trial, seeds)
        rows.append([f"{share:g}", f"{np.mean(levels):.3f}", f"{np.std(levels):.3f}", middle(errors)])
    print(f"\n### Budget split of valid AdaClip, d = {D}, n = {N:,} (true median norm 4.7; his Table 2)\n")
    print(table(["share of mu^2", "clip level", "its std", "L2 error"], rows), flush=True)


def quantiles(seeds: int) -> None:
    rows = [[f"q = {q:g}", middle(distances(AdaClip(quantile=q), plain, 1.0, seeds))] for q in (0.5, 0.75, 0.9)]
    for share in (0.001, 0.01):
        both = {"all rows": AdaClip(share=share), "a tenth of them, by a coin": Tenth(share)}
        rows += [
            [f"q = 0.5, {share:.1%} of mu^2, {name}", middle(distances(m, plain, 1.0, seeds))]
            for name, m in both.items()
        ]
    print("\n### Which quantile one-shot AdaClip should take, and from how many rows\n")
    print(table(["quantile", "L2 error"], rows), flush=True)


def curve(seeds: int) -> None:
    """His Figure 1: error against a fixed level, with the one-shot estimate and where dpgd's levels end."""
    points = [distances(FixedClip(level), plain, 1.0, seeds) for level in LEVELS]
    X, y, _ = plain(0)
    estimate = fitted(AdaClip(), X, y, 1.0, bounds="standardised", intercept=False).solution.threshold
    steps = fitted(Dpgd(), X, y, 1.0, bounds="standardised", intercept=False).solution.descent
    assert steps is not None
    best = distances(Dpgd(), plain, 1.0, seeds)
    _draw(points, float(estimate or 0.0), steps.thresholds[-1], float(np.median(best)))
    rows = [[f"{level:.3g}", middle(errors)] for level, errors in zip(LEVELS, points, strict=True)]
    print(f"\n### Error against a fixed clip level, d = {D}, n = {N:,} (curve.svg)\n")
    print(f"One-shot estimate {estimate:.2f}; dpgd starts at {steps.thresholds[0]:.2f}, ends at "
          f"{steps.thresholds[-1]:.2f}, error {middle(best)}.\n")  # fmt: skip
    print(table(["C", "L2 error"], rows), flush=True)


def _draw(points: list[list[float]], estimate: float, last: float, best: float) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "dpilot"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.5, 4))
    axes.plot(LEVELS, [np.median(errors) for errors in points], color="tab:blue", label="fixed clip level")
    low, high = ([np.quantile(errors, q) for errors in points] for q in (0.1, 0.9))
    axes.fill_between(LEVELS, low, high, alpha=0.25, color="tab:blue", linewidth=0)
    axes.axvline(estimate, color="tab:orange", linestyle="--", label="one-shot estimate at w = 0")
    axes.axvline(last, color="tab:green", linestyle=":", label="where the steps of dpgd end")
    axes.axhline(best, color="tab:green", label="dpgd")
    axes.set(xscale="log", yscale="log", xlabel="clip level C", ylabel="L2 error of the coefficients")
    axes.legend(frameon=False)
    figure.savefig(HERE / "curve.svg", bbox_inches="tight", metadata={"Date": None})


@dataclass(frozen=True, slots=True)
class Tenth:
    """AdaClip whose quantile sees each record with probability 1/10; no amplification is claimed."""

    share: float

    def stages(self, problem: LinearProblem, left: float) -> dict[str, Event]:
        return AdaClip(share=self.share).stages(problem, left)

    def solve(self, rows: Rows, problem: LinearProblem, left: float, size: float, run: CommittedRun) -> Solution:
        generator = np.random.default_rng()
        some = rows.map(lambda values: values[generator.random(values.shape[0]) < 0.1], rows.columns)
        sigma = multiplier(problem, left * self.share)
        with run.stage("threshold") as receipt:
            level = clip_level(some, 0.5, noise_multiplier=sigma, receipt=receipt, noise=run.noise)
        with run.stage("gradient") as receipt:
            sigmas = equal_steps(problem, left * (1 - self.share), 30)
            return Solution(fixed_steps(rows, level, sigmas, size=size, receipt=receipt, noise=run.noise))


@dataclass(frozen=True, slots=True)
class Scheduled:
    """AdaClip's steps, the clip level estimated before each of the steps ``at``, for 1 % of the squared mu each.

    With ``most``, a signal of its own (2 % for all) tells every third step which share of the norms lies below the
    level; where that is further from a half than 0.2 and three deviations of its noise, the level is estimated again,
    ``most`` times at most. With ``follow``, the signal moves the level every step instead, by exp(1/2 - share).
    With ``down``, no estimate may raise the level: norms that grow are the work of noise.
    """

    at: tuple[int, ...] = (0,)
    most: int = 0
    follow: bool = False
    down: bool = False
    steps: int = 30
    share: float = 0.01
    signal: float = 0.02

    def stages(self, problem: LinearProblem, left: float) -> dict[str, Event]:
        search = quantile_event(self._search(problem, left), grid=_GRID)
        signals = [Gaussian(self._signal(problem, left))] * len(self._heard)
        gradient = repeated_steps((self._step(problem, left),) * self.steps)
        return {"steps": Composed([*[search] * (len(self.at) + self.most), *signals, gradient])}

    def solve(self, rows: Rows, problem: LinearProblem, left: float, size: float, run: CommittedRun) -> Solution:
        theta, level, tail, left_over = np.zeros(problem.width), np.inf, [], self.most
        with run.stage("steps") as receipt:
            paid = {"receipt": receipt, "noise": run.noise}
            for step in range(self.steps):
                rest = rows.map(_residuals(theta), rows.columns)
                drift = self._drift(rest, level, problem, left, size, paid) if step in self._heard else 0.0
                found = level * float(np.exp(-drift)) if self.follow else level
                again = bool(drift) and not self.follow and left_over > 0
                left_over -= again
                if step in self.at or again:
                    found = clip_level(rest, 0.5, noise_multiplier=self._search(problem, left), **paid)
                level = min(level, found) if self.down else found
                theta = theta + fixed_steps(rest, level, (self._step(problem, left),), size=size, **paid)
                tail.append(theta)
        return Solution(np.mean(tail[-self.steps // 3 :], axis=0), threshold=level)

    @property
    def _heard(self) -> range:
        """The steps before which the signal is asked for."""
        return range(1, self.steps) if self.follow else range(3, self.steps, 3) if self.most else range(0)

    def _drift(
        self, rest: Rows, level: float, problem: LinearProblem, left: float, size: float, paid: dict[str, Any]
    ) -> float:
        """How far the share of norms below the level lies from a half; 0 where that is little, or noise."""
        exact = float(total(rest, lambda values: np.asarray(np.sum((_norms(values) <= level) - 0.5))))
        sigma = self._signal(problem, left)
        found = release(exact, bound=0.5, noise_multiplier=sigma, **paid) / size
        return found if self.follow or abs(found) > max(0.2, 1.5 * sigma / size) else 0.0

    def _search(self, problem: LinearProblem, left: float) -> float:
        return multiplier(problem, left * self.share)

    def _signal(self, problem: LinearProblem, left: float) -> float:
        return multiplier(problem, left * self.signal / max(len(self._heard), 1))

    def _step(self, problem: LinearProblem, left: float) -> float:
        taken = self.share * (len(self.at) + self.most) + self.signal * bool(self._heard)
        return multiplier(problem, left * (1 - taken) / self.steps)


def _residuals(theta: Array) -> Callable[[Array], Array]:
    return lambda values: np.column_stack([values[:, :-1], values[:, -1] - values[:, :-1] @ theta])


def strategies(seeds: int, epsilons: tuple[float, ...]) -> None:
    methods: dict[str, Method] = {
        "estimate once (adaclip)": AdaClip(),
        "again every 10 steps": Scheduled(at=(0, 10, 20)),
        "again every 5 steps": Scheduled(at=tuple(range(0, 30, 5))),
        "again on a drift signal": Scheduled(most=4),
        "follow the signal": Scheduled(follow=True),
        "every 10, never up": Scheduled(at=(0, 10, 20), down=True),
        "drift, never up": Scheduled(most=4, down=True),
        "follow, never up": Scheduled(follow=True, down=True),
        "iterate around 1 (boosted)": BoostedAdaSSP(clip=1.0),
        "iterate, clip bought": BoostedAdaSSP(),
        "re-estimate every step (dpgd)": Dpgd(),
    }
    cases = {
        "d=10, n=2,000": of(2_000, 10),
        "d=50, n=5,000": of(5_000, 50),
        "d=100, n=20,000": of(20_000, 100),
        "heavy tails, d=50, n=5,000": heavy(5_000, 50),
        "irrelevant features, d=50, n=5,000": irrelevant(5_000, 50),
    }
    print("\n### Estimating the clip level or iterating around it, matched budgets, data declared standardised\n")
    for epsilon in epsilons:
        rows = [
            [case, *(middle(distances(method, data, epsilon, seeds)) for method in methods.values())]
            for case, data in cases.items()
        ]
        print(f"epsilon {epsilon:g}\n\n{table(['case', *methods], rows)}\n", flush=True)


def main(quick: bool) -> None:
    seeds = 3 if quick else 20
    if "--strategies" in sys.argv:
        strategies(seeds, (0.1, 0.5, 1.0))
        return
    split(seeds)
    quantiles(seeds)
    curve(seeds)
    strategies(seeds, (1.0,) if quick else (0.1, 0.5, 1.0))
