"""RMSE and R^2 from bounded sums: paid, bounded, right on average, covering."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from dpilot.errors import BudgetExceeded, InvalidInput
from dpilot.metrics import regression
from dpilot.metrics.regression import exact_sums, noisy_sums, regression_scores, sums_event
from dpilot.noise import seeded_noise
from dpilot.privacy.events import Gaussian
from dpilot.privacy.receipt import Receipt


def drawn(size, seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-0.6, 0.6, size)
    return np.clip(x + rng.normal(0, 0.15, size), -1, 1), x


def noisy(pair, deviation, seed):
    paid = Receipt(sums_event(deviation))
    return noisy_sums(*pair, half_range=50.0, noise_multiplier=deviation, receipt=paid, noise=seeded_noise(seed))


def test_neighbours_move_the_sums_by_no_more_than_the_bound(replay, monkeypatch):
    monkeypatch.setattr(regression, "_ROWS", 7)

    def run(data):
        paid = Receipt(sums_event(1.0))
        return regression_scores(noisy_sums(*data, half_range=1.0, noise_multiplier=1.0, receipt=paid))

    results = replay(run, drawn(20, 0))
    extreme = (np.append(drawn(20, 0)[0], 1.0), np.append(drawn(20, 0)[1], -1.0))
    results += replay(run, extreme)
    assert max(result.largest for result in results) > 0.99


def test_it_does_not_matter_how_many_records_are_added_up_at_a_time():
    assert np.array_equal(regression._vector(*drawn(40, 0), rows=7), regression._vector(*drawn(40, 0)))


@pytest.mark.parametrize("size", [1000, 200_000])
def test_one_record_moves_the_sums_by_itself_though_sums_are_long(size):
    y, p = drawn(size, 4)
    whole, but_one, alone = (regression._vector(*each) for each in ((y, p), (y[1:], p[1:]), (y[:1], p[:1])))
    assert np.array_equal(whole - but_one, alone)


def test_sums_without_a_receipt_are_refused():
    with pytest.raises(BudgetExceeded):
        noisy_sums(
            *drawn(5, 0), half_range=1.0, noise_multiplier=1.0, receipt=Receipt(Gaussian(1.0), drawn=Gaussian(1.0))
        )


def test_exact_figures_are_those_of_the_records():
    y, p = drawn(1000, 1)
    rmse, explained = regression_scores(exact_sums(y, p, half_range=50.0))
    assert rmse.exact
    assert rmse.value == pytest.approx(50 * np.sqrt(np.mean((y - p) ** 2)))
    assert explained.value == pytest.approx(1 - np.mean((y - p) ** 2) / y.var())


@pytest.mark.parametrize("population", [False, True], ids=["noise", "noise and sampling"])
@pytest.mark.parametrize(("size", "deviation"), [(400, 3.7), (4000, 3.7)])
def test_figures_are_right_on_average_and_covered(size, deviation, population):
    fixed = drawn(size, 2)
    wanted = regression_scores(exact_sums(*(drawn(300_000, 3) if population else fixed), half_range=50.0))
    held, values = Counter(), []
    for seed in range(300):
        found = regression_scores(noisy(drawn(size, 100 + seed) if population else fixed, deviation, seed))
        values.append([each.value for each in found])
        for each, true in zip(found, wanted, strict=True):
            low, high = each.sampling_interval if population else each.noise_interval
            held[each.name] += low <= true.value <= high
    assert min(held.values()) > 300 * 0.90, held
    width = [each.sampling_interval[1] - each.sampling_interval[0] for each in found]
    assert np.all(np.abs(np.mean(values, axis=0) - [each.value for each in wanted]) < np.array(width) / 4)


def test_nobody_leaves_everything_open():
    rmse, explained = regression_scores(noisy((np.empty(0), np.empty(0)), 5.0, 1))
    assert rmse.noise_interval[1] - rmse.noise_interval[0] > 40
    assert explained.noise_interval[1] - explained.noise_interval[0] >= 1


def test_null_records_add_nothing():
    y, p = drawn(10, 1)
    more = exact_sums(np.append(y, [np.nan, 2.0, 0.5]), np.append(p, [0.0, 0.0, np.inf]), half_range=1.0)
    assert more == exact_sums(y, p, half_range=1.0)


def test_shapes_are_checked():
    with pytest.raises(InvalidInput, match="targets"):
        exact_sums(np.zeros(3), np.zeros((3, 1)), half_range=1.0)
