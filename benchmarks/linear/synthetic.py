"""Synthetic tables with the faults of real ones: defaults are chosen here, and real tables are left to judge them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.linear.common import Array, fitted, least_squares, predictions, r2, table
from dpilot.linear.adassp import AdaSSP
from dpilot.linear.auto import Auto
from dpilot.linear.dpgd import Dpgd
from dpilot.linear.fitting import Method

Rng = np.random.Generator
Make = Callable[[Rng, int, int], tuple[Array, Array]]

SHAPES = ((6_500, 21), (15_000, 40), (20_000, 10))
METHODS: dict[str, Method] = {
    "auto": Auto(),
    "auto, no second moments": Auto(again=False),
    "auto, gram 0.5": Auto(share=0.5),
    "auto, gram 0.8": Auto(share=0.8),
    "dpgd": Dpgd(),
    "adassp": AdaSSP(),
}


def correlated(rng: Rng, n: int, d: int, rank: int, own: float) -> Array:
    """Normal columns that share ``rank`` factors and have ``own`` of their own."""
    factors = rng.normal(size=(n, rank)) @ rng.normal(size=(rank, d)) / np.sqrt(rank)
    return np.asarray(factors + own * rng.normal(size=(n, d)))


def weights(rng: Rng, d: int) -> Array:
    return np.asarray(rng.normal(size=d) / np.sqrt(d))


def normal(rng: Rng, n: int, d: int) -> tuple[Array, Array]:
    X = correlated(rng, n, d, d, 1.0)
    return X, X @ weights(rng, d) + rng.normal(size=n)


def skewed(rng: Rng, n: int, d: int) -> tuple[Array, Array]:
    """Log-normal columns, of which the target is linear."""
    X = np.exp(correlated(rng, n, d, 5, 0.5))
    return X, X @ weights(rng, d) + 2 * rng.normal(size=n)


def saturating(rng: Rng, n: int, d: int) -> tuple[Array, Array]:
    """Heavy-tailed loads take a target from 100 down to 0, where it stays: most records lie near the top."""
    X = np.exp(correlated(rng, n, d, 5, 0.7))
    load = np.abs(weights(rng, d))
    return X, np.clip(100 - 12 * X @ load / load.sum() + 2 * rng.normal(size=n), 0, 100)


def apart(rng: Rng, n: int, d: int) -> tuple[Array, Array]:
    """One record in twenty has a target of 0, far from all others, and columns that tell it."""
    X = correlated(rng, n, d, 5, 0.7)
    y = 85 + 4 * X @ weights(rng, d) + 2 * rng.normal(size=n)
    low = rng.random(n) < 0.05
    X[low] = np.abs(X[low]) * rng.exponential(3.0, size=(int(low.sum()), 1))
    return X, np.where(low, 0.0, y)


def collinear(rng: Rng, n: int, d: int) -> tuple[Array, Array]:
    X = correlated(rng, n, d, 4, 0.1)
    return X, X @ weights(rng, d) + 0.3 * rng.normal(size=n)


def hidden(rng: Rng, n: int, d: int) -> tuple[Array, Array]:
    """Collinear columns, the signal in what is left of them when the factors are taken out."""
    factors = rng.normal(size=(n, 4)) @ rng.normal(size=(4, d)) / 2
    own = rng.normal(size=(n, d))
    return factors + 0.1 * own, own @ weights(rng, d) + 0.3 * rng.normal(size=n)


def outlying(rng: Rng, n: int, d: int) -> tuple[Array, Array]:
    X = correlated(rng, n, d, 5, 0.7)
    return X, X @ weights(rng, d) + 0.3 * rng.standard_t(2.5, size=n)


def uneven(rng: Rng, n: int, d: int) -> tuple[Array, Array]:
    """A price: its logarithm is linear, so its spread grows with it."""
    X = correlated(rng, n, d, 5, 0.7)
    return X, np.exp(0.7 * X @ weights(rng, d) + 0.2 * rng.normal(size=n))


def sparse(rng: Rng, n: int, d: int) -> tuple[Array, Array]:
    X = correlated(rng, n, d, d, 1.0) * (rng.random((n, d)) < rng.uniform(0.02, 0.5, size=d))
    return X, X @ weights(rng, d) + 0.5 * rng.normal(size=n)


CASES: dict[str, Make] = {
    make.__name__: make
    for make in (normal, skewed, saturating, apart, collinear, hidden, outlying, uneven, sparse)
}  # fmt: skip


def scores(make: Make, n: int, d: int, seed: int, epsilon: float, methods: dict[str, Method]) -> dict[str, float]:
    X, y = make(np.random.default_rng(40_000 + seed), 2 * n, d)
    found = {"least squares": r2(y[n:], least_squares(X[:n], y[:n], X[n:]))}
    for name, method in methods.items():
        found[name] = r2(y[n:], predictions(fitted(method, X[:n], y[:n], epsilon, random_state=seed), X[n:]))
    return found


def main(quick: bool) -> None:
    seeds, epsilon = 2 if quick else 10, 1.0
    rows, gaps = [], []
    for n, d in SHAPES[:1] if quick else SHAPES:
        for name, make in CASES.items():
            runs = [scores(make, n, d, seed, epsilon, METHODS) for seed in range(seeds)]
            medians = {key: float(np.median([run[key] for run in runs])) for key in runs[0]}
            gaps.append({key: max(medians.values()) - value for key, value in medians.items()})
            rows.append([f"{name}, n={n:,}, d={d}", *(f"{value:.3f}" for value in medians.values())])
    worst = [f"{np.mean([gap[key] for gap in gaps]):.3f} / {max(gap[key] for gap in gaps):.3f}" for key in gaps[0]]
    near = [f"{sum(gap[key] <= 0.03 for gap in gaps)} of {len(gaps)}" for key in gaps[0]]
    rows += [["gap to the best, mean / largest", *worst], ["within 0.03 of the best", *near]]
    print(f"\n### Epsilon {epsilon:g}: median R^2 of {seeds} seeds\n")
    print(table(["table", "least squares", *METHODS], rows), flush=True)
