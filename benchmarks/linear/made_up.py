"""The data of the paper; needs numpy alone."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]


def paper(n: int, d: int, seed: int) -> tuple[Array, Array, Array]:
    """The data of Provan's section 5.1: x standard normal, w = 1 / sqrt(d), noise of standard deviation 0.1."""
    rng = np.random.default_rng(10_000 + seed)
    X, weights = rng.normal(size=(n, d)), np.ones(d) / np.sqrt(d)
    return X, X @ weights + 0.1 * rng.normal(size=n), weights
