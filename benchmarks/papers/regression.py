"""Private least squares: Provan's own mini-batch baseline, his searches made valid, and the library's methods.

``data`` is "d=50, n=5000" (section 5.1), or "drift, d=20, n=20000": records that come in 40 blocks, each read once, the
spread of the target ten times as large from the middle on (section 7).

| method | what |
|---|---|
| mini-batch | 200 epochs of batches of n/100 (Poisson), step size 0.01 down a cosine, at a threshold |
| the same with "quantile" | the threshold looked up at the start, without paying (his "Opt C") |
| mini-batch, searched | the threshold is a valid private median of the norms at the start, for a share of epsilon |
| once, every, follow | in blocks: the threshold searched in the first, searched in all, or moved in every step |
| the others | ``dpilot.linear``; settings: bounds ("standardised": declared; none: everything bought) |
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Any

import numpy as np

from benchmarks.linear.made_up import Array, paper
from benchmarks.papers.cell import Cell
from benchmarks.papers.lines import Figures
from dpilot import Budget, privacy
from dpilot.privacy import gdp_mu
from dpilot.privacy.receipt import Receipt
from dpilot.statistics import log_grid, quantile, quantile_event

DELTA = 1e-5
EPOCHS, PARTS, RATE = 200, 100, 0.01
BLOCKS = 40
GRID = log_grid(2.0**-12, 2.0**12, per_octave=4)


def measure(cell: Cell, device: str) -> Figures:
    """The distance to the true coefficients."""
    del device
    numbers = {name: int(value) for name, value in re.findall(r"(\w)=(\d+)", cell.data)}
    d, n = numbers["d"], min(numbers["n"], 500) if cell.settings.get("quick") else numbers["n"]
    epochs = 1 if cell.settings.get("quick") else EPOCHS
    if cell.data.startswith("drift"):
        return _blocks(cell, n, d)
    X, y, weights = paper(n, d, cell.seed)
    found: dict[str, Any] = {}
    if cell.method == "least squares":
        guess = np.linalg.lstsq(X, y, rcond=None)[0]
    elif cell.method == "mini-batch":
        threshold = cell.settings.get("threshold") or float(np.quantile(_norms(X, y), cell.settings["quantile"]))
        guess = descend(X, y, threshold, cell.epsilon, epochs, cell.seed)
        found["threshold"] = threshold
    elif cell.method == "mini-batch, searched":
        share = cell.settings["share"]
        found["threshold"] = _search(_norms(X, y), gdp_mu(Budget(share * cell.epsilon, DELTA / 2)))
        guess = descend(X, y, found["threshold"], (1 - share) * cell.epsilon, epochs, cell.seed, DELTA / 2)
    else:
        guess = _ours(cell.method, X, y, cell.epsilon, cell.settings.get("bounds"))
    return {"error": float(np.linalg.norm(guess - weights)), **found}


def _ours(name: str, X: Array, y: Array, epsilon: float, bounds: str | None) -> Array:
    """A method of the library; "fixed, C" names its threshold."""
    from benchmarks.linear.common import coefficients, fitted
    from dpilot.linear.fixed import FixedClip
    from dpilot.linear.methods import METHODS

    kind, _, threshold = name.partition(", ")
    method = FixedClip(float(threshold)) if threshold else METHODS[kind]
    return coefficients(fitted(method, X, y, epsilon, bounds=bounds, intercept=bounds is None))


def descend(
    X: Array, y: Array, threshold: float, epsilon: float, epochs: int, seed: int, delta: float = DELTA
) -> Array:
    """His baseline: each step a Poisson batch of n/100, clipped, noisy, divided by the expected batch."""
    n, d = X.shape
    steps, rng = epochs * PARTS, np.random.default_rng(70_000 + seed)
    scale = _multiplier(epsilon, delta, steps) * threshold
    weights, batch = np.zeros(d), n / PARTS
    for step in range(steps):
        rows = rng.choice(n, rng.binomial(n, 1 / PARTS), replace=False, shuffle=False)
        gradients = (X[rows] @ weights - y[rows])[:, None] * X[rows]
        lengths = np.linalg.norm(gradients, axis=1)
        total = (gradients * np.minimum(1.0, threshold / np.maximum(lengths, 1e-300))[:, None]).sum(0)
        rate = RATE * (1 + math.cos(math.pi * step / steps)) / 2
        weights = weights - rate * (total + scale * rng.normal(size=d)) / batch
    return weights


@lru_cache(maxsize=16)
def _multiplier(epsilon: float, delta: float, steps: int) -> float:
    return privacy.noise_multiplier(Budget(epsilon, delta), sample_rate=1 / PARTS, steps=steps)


def _norms(X: Array, y: Array) -> Array:
    return np.asarray(np.linalg.norm(X, axis=1) * np.abs(y))


def _search(norms: Array, mu: float, q: float = 0.5) -> float:
    sigma = 1 / mu
    return float(
        quantile(
            norms[:, None], q, grid=GRID, noise_multiplier=sigma, receipt=Receipt(quantile_event(sigma, grid=GRID))
        )[0]
    )


def _blocks(cell: Cell, n: int, d: int) -> Figures:
    """Records that come once: the budget of a block is the whole budget, as blocks are disjoint.

    A block takes four full steps. ``once`` pays a tenth of mu^2 for a median of the norms in the first block, ``every``
    in each block; ``follow`` takes 1 % in every step for the fraction above the threshold, and moves it by that.
    """
    X, y, weights = paper(n, d, cell.seed)
    half = n // 2
    spread = np.where(np.arange(n) < half, 1.0, 10.0)
    y, rng = y * spread, np.random.default_rng(80_000 + cell.seed)
    mu, block, guess = gdp_mu(Budget(cell.epsilon, DELTA)), n // BLOCKS, np.zeros(d)
    threshold, errors = 1.0, []
    for place in range(BLOCKS):
        rows = slice(place * block, (place + 1) * block)
        target = weights * spread[rows.start]
        left = mu**2
        if cell.method == "every" or (cell.method == "once" and place == 0):
            residual = y[rows] - X[rows] @ guess
            threshold, left = _search(_norms(X[rows], residual), mu * math.sqrt(0.1)), 0.9 * mu**2
        for _ in range(4):
            gradients = (X[rows] @ guess - y[rows])[:, None] * X[rows]
            lengths = np.linalg.norm(gradients, axis=1)
            share = 0.01 if cell.method == "follow" else 0.0
            sigma = 2 / math.sqrt(left * (1 - share))
            total = (gradients * np.minimum(1.0, threshold / np.maximum(lengths, 1e-300))[:, None]).sum(0)
            guess = guess - 0.5 * (total + sigma * threshold * rng.normal(size=d)) / block
            if share:
                above = (np.sum(lengths > threshold) - block / 2 + rng.normal() / math.sqrt(left * share)) / block
                threshold *= math.exp(float(np.clip(above, -0.5, 0.5)))
        errors.append(float(np.linalg.norm(guess - target) / spread[rows.start]))
    middle = BLOCKS // 2
    return {
        "error": errors[-1],
        "before": errors[middle - 1],
        "after": errors[min(middle + 4, BLOCKS - 1)],
        "threshold": threshold,
    }
