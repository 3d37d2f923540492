"""TukeyEM by its parts: depth and distance move by one when one model moves, and the whole costs what it says."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest

from dpilot.linear import tukey
from dpilot.linear.estimators import LinearRegression
from dpilot.linear.rows import MemoryRows
from dpilot.linear.tukey import TukeyEM, _deep_point, _fits, _laplace, distance, log_volumes
from dpilot.mechanism import seeded_noise
from dpilot.privacy.accountant import epsilon
from dpilot.privacy.events import ApproxDP, Composed
from tests.linear.helpers import EXTREMES, line, moved, table, with_record

EPSILON, DELTA = 1.0, 1e-5


def cloud(m=400, d=2, seed=0):
    return np.random.default_rng(seed).normal(size=(m, d))


@pytest.mark.parametrize("other", [(0.0, 0.0), (1e9, -1e9), (1.0, 5.0)])
@pytest.mark.parametrize("seed", range(5))
def test_one_model_moves_the_distance_by_at_most_one(other, seed):
    fits = cloud(seed=seed)
    changed = fits.copy()
    changed[seed] = other
    before, after = (distance(log_volumes(each), 0.5, 1e-6) for each in (fits, changed))
    assert abs(before - after) <= 1


def test_many_models_are_far_from_unsafe_and_few_are_not():
    assert distance(log_volumes(cloud(2000)), 0.55, 5e-6) > 25
    assert distance(log_volumes(cloud(40)), 0.55, 5e-6) <= 0


def test_models_that_agree_exactly_are_not_safe():
    assert distance(log_volumes(np.ones((400, 2))), 0.5, 1e-6) == -1


def test_a_test_that_does_not_pass_gives_zeros():
    assert not _deep_point(cloud(40), 0.5, 5e-6, seeded_noise(0)).any()


def test_the_point_is_deep_among_the_models():
    fits = cloud(3000) * [1.0, 100.0] + [5.0, -3.0]
    for seed in range(10):
        point = _deep_point(fits, 0.5, 5e-6, seeded_noise(seed))
        assert (np.abs((point - [5.0, -3.0]) / [1.0, 100.0]) < 0.7).all()


def test_the_laplace_noise_has_the_scale_it_should():
    noise = seeded_noise(0)
    drawn = np.array([_laplace(3.0, noise) for _ in range(4000)])
    assert np.abs(drawn).mean() == pytest.approx(3.0, rel=0.1)
    assert abs(drawn.mean()) < 0.3


def test_the_test_passes_as_often_as_its_noise_says(monkeypatch):
    limit = np.log(1 / (2 * 5e-6)) / 0.5
    monkeypatch.setattr(tukey, "distance", lambda *_: limit - 2.0)  # passes if Laplace(2) > 2: 0.18 of the time
    passed = [_deep_point(cloud(40), 0.5, 5e-6, seeded_noise(seed)).any() for seed in range(400)]
    assert np.mean(passed) == pytest.approx(0.5 * np.exp(-1), abs=0.08)


def test_each_record_is_in_one_model():
    rows = MemoryRows.of(table(2000, 2))
    fits = _fits(rows, 20)
    assert fits.shape == (20, 2)
    assert np.median(fits, axis=0) == pytest.approx(np.full(2, 0.5**0.5), abs=0.1)


def test_the_whole_costs_no_more_than_the_budget():
    X, y, _ = line(400, 3)
    model = LinearRegression(method="tukey").fit(X, y)
    events = [entry.event for entry in model.privacy_.entries]
    assert isinstance(events[-1], ApproxDP)
    assert model.privacy_.spent.epsilon <= 1.0
    assert epsilon(Composed(events), 1e-5) <= 1.0
    declared = LinearRegression(method="tukey", bounds="standardised").fit(X, y)
    assert [entry.event for entry in declared.privacy_.entries] == [ApproxDP(1.0, 1e-5)]


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


@pytest.mark.parametrize("record", EXTREMES)
def test_one_more_record_moves_depths_and_distance_by_at_most_one(record):
    rows = table(3000, 1)
    found = moved(
        lambda: LinearRegression(method="tukey", bounds="standardised", fit_intercept=False, size=3000),
        rows,
        with_record(rows, *EXTREMES[record]),
    )
    assert found.differences == ()
    assert found.releases == 1
    assert found.largest in (0.0, 1.0)


def test_two_models_would_be_heard(monkeypatch):
    rows = table(3000, 1)

    def unfair(values, models):
        """A record that lies in every model."""
        x, y = values.chunk.values[:, 0], values.chunk.values[:, 1]
        return np.sort(y / x)[:models, None] + y[-1]

    monkeypatch.setattr(tukey, "_fits", unfair)
    found = moved(
        lambda: LinearRegression(method="tukey", bounds="standardised", fit_intercept=False, size=3000),
        rows,
        with_record(rows, 1.0, 1e3),
    )
    assert any("more than its bound" in difference for difference in found.differences)


def test_with_enough_records_it_finds_the_coefficients():
    X, y, weights = line(30_000, 2)
    found = LinearRegression(method="tukey", bounds="standardised", fit_intercept=False).fit(X, y)
    assert found.coef_ == pytest.approx(weights, abs=0.1)
    assert TukeyEM(models=7).models == 7
