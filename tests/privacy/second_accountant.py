"""A second accountant, written apart from dp-accounting: privacy losses of the sampled Gaussian, composed by FFT.

The privacy loss of (1-q) N(0, s^2) + q N(1, s^2) against N(0, s^2) is binned (nearest bin, no bound claimed), raised to
the T-th power of its Fourier transform, and read off as a hockey-stick divergence, in both directions.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm


def loss(x: np.ndarray, q: float, s: float) -> np.ndarray:
    return np.log1p(q * np.expm1((2 * x - 1) / (2 * s**2)))


def losses(q: float, s: float, points: int, remove: bool) -> tuple[np.ndarray, np.ndarray]:
    edges = np.linspace(-12 * s, 1 + 12 * s, points + 1)
    middle = (edges[1:] + edges[:-1]) / 2
    base, shifted = np.diff(norm.cdf(edges, 0, s)), np.diff(norm.cdf(edges, 1, s))
    mixture = (1 - q) * base + q * shifted
    return (loss(middle, q, s), mixture) if remove else (-loss(middle, q, s), base)


def delta(q: float, s: float, steps: int, epsilon: float, *, grid: int = 2**18, points: int = 200_000) -> float:
    return max(_delta(q, s, steps, epsilon, grid, points, remove) for remove in (True, False))


def _delta(q: float, s: float, steps: int, epsilon: float, grid: int, points: int, remove: bool) -> float:
    value, weight = losses(q, s, points, remove)
    mean, variance = weight @ value, weight @ value**2 - (weight @ value) ** 2
    reach = 1.05 * max(abs(value).max(), abs(steps * mean) + 14 * np.sqrt(steps * variance), 2 * epsilon)
    width = 2 * reach / grid
    position = value / width
    low = np.floor(position).astype(int)
    upper = position - low  # split between two bins, so that means agree exactly
    pmf = np.zeros(grid)
    np.add.at(pmf, low % grid, weight * (1 - upper))
    np.add.at(pmf, (low + 1) % grid, weight * upper)
    total = np.fft.irfft(np.fft.rfft(pmf) ** steps, grid)
    where = np.fft.fftfreq(grid, 1 / grid) * width
    above = where > epsilon
    return float(np.sum(total[above] * -np.expm1(epsilon - where[above])))


def epsilon(q: float, s: float, steps: int, target: float) -> float:
    if delta(q, s, steps, 0.0) <= target:
        return 0.0
    return float(brentq(lambda e: delta(q, s, steps, e) - target, 0.0, 60.0, xtol=1e-5))
