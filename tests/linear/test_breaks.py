"""Pairs of tables that differ in one record, of which one once told more than its budget, or raised."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest

from dpilot.linear.tukey import _deep_point, distance, log_volumes

EPSILON, DELTA = 1.0, 1e-5


@dataclass(frozen=True, slots=True)
class Passing:
    """Noise that passes every test of the mechanism, and keeps the logarithms of the weights it was to choose by."""

    weights: list[np.ndarray] = field(default_factory=list)

    def gaussian(self, values, *, bound, noise_multiplier):
        return [np.full_like(value, 7.0) for value in values]

    def choice(self, weights):
        self.weights.append(weights)
        return 0


def passes(fits):
    missing = math.log(1 / DELTA) / (EPSILON / 2) - distance(log_volumes(fits), EPSILON / 2, DELTA / 2)
    tail = 0.5 * math.exp(-EPSILON / 2 * abs(missing))
    return tail if missing > 0 else 1 - tail


def below(fits, end):
    """The exact probability of a point below ``end``, by the weights that the mechanism hands to its noise."""
    noise = Passing()
    _deep_point(fits, EPSILON / 2, DELTA / 2, noise)
    (logarithms,) = noise.weights
    ordered, models = np.sort(fits[:, 0]), fits.shape[0]
    depths = np.arange(models // 4, models // 2 + 1)
    low, high = ordered[depths - 1], ordered[-depths]
    shares = np.clip(end - low, 0, high - low) / (high - low)
    weights = np.exp(logarithms - logarithms.max())
    return passes(fits) * float(weights @ shares / weights.sum())


def lists(length, place, models=400):
    """Models on a line, one long gap ``place`` ranks above the middle; and the same with the lowest moved on top."""
    gaps = np.full(models - 1, length * 1e-3)
    gaps[models // 2 - 4 : models // 2 - 1] = length
    gaps[models // 2 - 1 + place] = 1.0
    gaps[models - (models // 4 - 22) - 1] = 1e9  # outside of every box that is drawn from
    fits = np.append(0.0, np.cumsum(gaps))[:, None]
    other = fits.copy()
    other[0] = fits[-1] + 1.0
    return fits, other, float(fits[models // 2 - 1, 0])


@pytest.mark.parametrize("place", [1, 2, 3])
@pytest.mark.parametrize("length", [1e-2, 3e-2, 0.1, 0.2, 0.3])
def test_tukey_costs_its_epsilon_where_one_model_swaps_sides(length, place):
    fits, other, middle = lists(length, place)
    here, there = below(fits, middle), below(other, middle)
    assert min(here, there) > 1e-4
    assert here <= math.exp(EPSILON) * there + DELTA
    assert there <= math.exp(EPSILON) * here + DELTA
