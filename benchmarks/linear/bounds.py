"""Declared bounds against none, and small tables: R^2 of `auto` on a held-out fifth. Reads regression of DPILOT_DATA.

Every table whole and cut to 800 records, with nothing declared, with the smallest and largest value declared ("close"),
and with ten times that range ("wide"; indicators keep theirs). The bounds are looked up in the data, for the benchmark
alone. And the L2 error of coefficients on normal columns, the case of the published tables.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.linear.common import Array, coefficients, fitted, middle, paper, predictions, r2, repeated, table
from benchmarks.linear.real import folder, load
from dpilot.linear.auto import Auto

KINDS = ("none", "close", "wide")
EPSILONS = (0.1, 1.0, 3.0)
SMALL = 800
FIXED: dict[str, Any] = {
    "none": None,
    "5 deviations": {"X": (-5.0, 5.0), "y": (-5.0, 5.0)},
    "50 deviations": {"X": (-50.0, 50.0), "y": (-50.0, 50.0)},
    "standardised": "standardised",
}


def main(quick: bool) -> None:
    _coefficients(3 if quick else 20)
    where = folder()
    if where is None:
        print("real tables: skipped, DPILOT_DATA is not set")
        return
    paths = sorted(where.glob("*.parquet"))[: 3 if quick else None]
    for epsilon in EPSILONS:
        for rows in (SMALL, None):
            found = {path.stem: _scores(*_cut(*load(path), rows), epsilon, 2 if quick else 5) for path in paths}
            print(f"\n### epsilon {epsilon:g}, {f'{rows} records' if rows else 'all records'}: median (lowest) R^2\n")
            lines = [[name, *(_shown(each[kind]) for kind in KINDS)] for name, each in found.items()]
            print(table(["table", *KINDS], lines), flush=True)


def _coefficients(seeds: int) -> None:
    def error(bounds: Any, seed: int) -> float:
        X, y, weights = paper(2_000, 50, seed)
        return float(
            np.linalg.norm(coefficients(fitted(Auto(), X, y, 1.0, bounds=bounds, random_state=seed)) - weights)
        )

    print("\n### d = 50, n = 2,000: L2 error of auto, median (90 % quantile)\n")
    lines = [[name, middle(repeated(lambda seed, b=bounds: error(b, seed), seeds))] for name, bounds in FIXED.items()]
    print(table(["declared", "error"], lines), flush=True)


def _cut(X: Array, y: Array, rows: int | None) -> tuple[Array, Array]:
    kept = np.random.default_rng(9).permutation(y.size)[:rows]
    return X[kept], y[kept]


def _scores(X: Array, y: Array, epsilon: float, seeds: int) -> dict[str, list[float]]:
    return {kind: [_score(X, y, epsilon, _declared(kind, X, y), seed) for seed in range(seeds)] for kind in KINDS}


def _score(X: Array, y: Array, epsilon: float, bounds: Any, seed: int) -> float:
    train = np.random.default_rng(seed).random(y.size) < 0.8
    found = fitted(Auto(), X[train], y[train], epsilon, bounds=bounds, random_state=seed)
    return r2(y[~train], predictions(found, X[~train]))


def _declared(kind: str, X: Array, y: Array) -> Any:
    if kind == "none":
        return None
    known = np.isfinite(X).all(axis=1) & np.isfinite(y)
    rows = np.column_stack([X, y])[known]
    low, high = rows.min(axis=0), rows.max(axis=0)
    high = np.where(high > low, high, low + 1)
    indicator = np.array([np.isin(column, (0.0, 1.0)).all() for column in rows.T])
    half = (high - low) / 2 * np.where(indicator | (kind == "close"), 1.0, 10.0)
    low, high = (low + high) / 2 - half, (low + high) / 2 + half
    return {"X": (low[:-1], high[:-1]), "y": (low[-1], high[-1])}


def _shown(values: list[float]) -> str:
    return f"{np.median(values):.3f} ({min(values):.3f})"
