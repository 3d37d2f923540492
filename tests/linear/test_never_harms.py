"""Regression never harms: hopeless budgets give the noisy mean, and declared bounds are no worse than none."""

from __future__ import annotations

import numpy as np
import pytest

from dpilot.data.schema import Schema
from dpilot.linear import AutoRegressor, LinearRegression
from dpilot.linear.auto import _centre
from dpilot.linear.gram_matrix import Gram
from dpilot.linear.problem import LinearProblem
from dpilot.privacy.budget import Budget
from tests.linear.helpers import line
from tests.thin import thin_product

pytestmark = pytest.mark.filterwarnings("ignore:random_state")  # the same noise every time

LOW, HIGH = 20.0 - 6.0, 20.0 + 6.0
BOUNDS = {
    "none": None,
    "close": {"X": (-4.0, 4.0), "y": (LOW, HIGH)},
    "ten times too wide": {"X": (-40.0, 40.0), "y": (-40.0, 80.0)},
    "from 0": {"X": (-40.0, 40.0), "y": (0.0, 1000.0)},
    "features alone": {"X": (-40.0, 40.0)},
    "target alone": {"y": (-40.0, 80.0)},
}


def scores(n, d, epsilon, seeds, make=LinearRegression, **options):
    """R^2 on other records of the same kind, whose target lies about 20."""
    found = []
    for seed in range(seeds):
        X, y, _ = line(n + 1000, d, seed, noise=1.0)
        found.append(make(epsilon, random_state=seed, **options).fit(X[:n], 20.0 + y[:n]).score(X[n:], 20.0 + y[n:]))
    return np.array(found)


@pytest.mark.parametrize(
    ("case", "bounds"), thin_product(5, [(1000, 10, 0.1), (300, 40, 0.5), (3000, 200, 0.3), (200, 3, 1.0)], BOUNDS)
)
def test_hopeless_budgets_predict_the_noisy_mean(case, bounds):
    n, d, epsilon = case
    problem = LinearProblem(d, True, float(n), Budget(epsilon, 1e-5))
    assert problem.hopeless
    found = scores(n, d, epsilon, 5, bounds=BOUNDS[bounds])
    assert np.median(found) > -0.25
    assert found.min() > -0.8


@pytest.mark.parametrize("n", [20, 50])
def test_with_bounds_hardly_any_budget_still_buys_the_mean_within_them(n):
    """The noisy mean is off by half the range / (mu n): here 1.1 and 0.45 standard deviations."""
    found = scores(n, 3, 1.0, 10, bounds=BOUNDS["close"])
    error = 0.5 * (HIGH - LOW) / (LinearProblem(3, True, float(n), Budget(1.0, 1e-5)).mu * n)
    assert np.median(found) > -(error**2)


@pytest.mark.parametrize(("case", "bounds"), thin_product(5, [(800, 12, 1.0), (2000, 40, 1.0), (3000, 8, 0.3)], BOUNDS))
def test_small_budgets_are_no_worse_than_the_mean(case, bounds):
    n, d, epsilon = case
    assert not LinearProblem(d, True, float(n), Budget(epsilon, 1e-5)).hopeless
    found = scores(n, d, epsilon, 5, bounds=BOUNDS[bounds])
    assert np.median(found) > -0.05
    assert found.min() > -0.35


def test_the_automatic_regressor_is_no_worse_either():
    assert scores(600, 40, 0.3, 4, AutoRegressor).min() > -0.8


@pytest.mark.parametrize(("n", "least"), [(600, -0.8), (6000, 0.1)])
def test_a_schema_with_wide_bounds_does_not_harm(n, least):
    number = {"type": "numeric", "bounds": [-1000.0, 3000.0]}
    columns = dict.fromkeys("abc", number) | {"y": {**number, "role": "target"}}
    X, y, _ = line(n, 3, noise=1.0)
    frame = dict(zip("abc", X.T, strict=True))
    model = AutoRegressor(0.3, schema=Schema.from_dict({"columns": columns}), random_state=0).fit(frame, 20.0 + y)
    assert model.score(frame, 20.0 + y) > least


def errors(bounds, n=2000, d=50, seeds=5):
    found = []
    for seed in range(seeds):
        X, y, weights = line(n, d, seed, noise=0.1)
        found.append(np.linalg.norm(LinearRegression(bounds=bounds, random_state=seed).fit(X, y).coef_ - weights))
    return float(np.median(found))


@pytest.mark.parametrize(
    "bounds",
    [
        {"X": (-5.0, 5.0), "y": (-5.0, 5.0)},
        {"X": (-50.0, 50.0), "y": (-500.0, 500.0)},
        {"X": (-1e6, 1e6), "y": (-1e9, 1e9)},
    ],
    ids=["close", "wide", "anything"],
)
def test_declared_bounds_are_no_worse_than_none(bounds):
    assert errors(bounds) < 0.2  # 0.7 and more where columns were scaled by their bounds; 0.03 to 0.1 without bounds


def test_columns_declared_unevenly_are_learnt_as_well():
    rng = np.random.default_rng(0)
    X, y, _ = line(4000, 10, noise=0.3)
    reach = 10.0 ** rng.uniform(0.7, 5, size=10)
    declared = LinearRegression(bounds={"X": (-reach, reach), "y": (-1e4, 10.0)}, random_state=0).fit(X, y).score(X, y)
    assert declared > 0.7  # 0.9 without bounds


def test_a_mean_within_its_noise_moves_no_centre():
    moments = np.eye(3)
    moments[-1, :-1] = moments[:-1, -1] = [0.0, 0.3]
    assert _centre(Gram(moments, 0.2, 1.0), True).tolist() == [0.0, 0.0]
    assert _centre(Gram(moments, 0.1, 1.0), True) == pytest.approx([0.0, 0.3 * (1 - 4 / 9)])
    assert _centre(Gram(moments, 0.0, 1.0), True) == pytest.approx([0.0, 0.3])
    assert _centre(Gram(moments, 0.1, 1.0), False).tolist() == [0.0, 0.0]
