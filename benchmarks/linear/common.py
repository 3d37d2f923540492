"""What the parts share: one way to fit, one way to sum up."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from benchmarks.linear.made_up import Array, paper
from dpilot.linear.declared_bounds import parse_bounds
from dpilot.linear.fitting import Fitted, Method, PrivacyWarning, fit_rows, problem_of
from dpilot.linear.rows import MemoryRows

__all__ = [
    "DELTA",
    "Array",
    "coefficients",
    "fitted",
    "least_squares",
    "middle",
    "paper",
    "predictions",
    "r2",
    "repeated",
    "table",
]

DELTA = 1e-5


def fitted(
    method: Method,
    X: Array,
    y: Array,
    epsilon: float,
    *,
    bounds: Any = None,
    intercept: bool = True,
    random_state: int | None = None,
) -> Fitted:
    """One fit through the ledger, at delta 1e-5, the number of records public; seeded where fits are to be paired."""
    problem, _ = problem_of(epsilon, DELTA, features=X.shape[1], intercept=intercept, size="public", length=X.shape[0])
    rows = MemoryRows.of(np.column_stack([X, y]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        return fit_rows(rows, problem, parse_bounds(bounds, X.shape[1]), method, random_state=random_state)


def coefficients(found: Fitted) -> Array:
    scaling = found.scaling
    return np.asarray(found.solution.theta[: scaling.center.size - 1] * scaling.scale[-1] / scaling.scale[:-1])


def predictions(found: Fitted, X: Array, *, intercept: bool = True) -> Array:
    scaling, coef = found.scaling, coefficients(found)
    inside = np.clip(np.where(np.isfinite(X), X, scaling.center[:-1]), scaling.lower[:-1], scaling.upper[:-1])
    constant = found.solution.theta[-1] * scaling.scale[-1] if intercept else 0.0
    raw = (inside - scaling.center[:-1]) @ coef + constant + scaling.center[-1]
    return np.asarray(np.clip(raw, *scaling.target_range))


def r2(y: Array, guess: Array) -> float:
    return float(1 - np.mean((y - guess) ** 2) / np.var(y))


def least_squares(X: Array, y: Array, new: Array) -> Array:
    """Non-private least squares on standardised columns, missing values at the mean."""
    known = np.isfinite(X).all(axis=1) & np.isfinite(y)
    center, scale = X[known].mean(axis=0), X[known].std(axis=0) + 1e-12

    def design(values: Array) -> Array:
        return np.column_stack([(np.where(np.isfinite(values), values, center) - center) / scale, np.ones(len(values))])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weights = np.linalg.lstsq(design(X[known]), y[known], rcond=1e-10)[0]
    return np.asarray(design(new) @ weights)


def repeated(trial: Callable[[int], float], seeds: int) -> list[float]:
    return [trial(seed) for seed in range(seeds)]


def middle(values: Iterable[float], digits: int = 4) -> str:
    """Median and 90 % quantile of errors."""
    values = list(values)
    return f"{np.median(values):.{digits}f} ({np.quantile(values, 0.9):.{digits}f})"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
