"""The benchmark of tuning: its arithmetic, its surfaces, and the walks that both ways of a run agree on."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.tune.choices import data_free, scaled, space_of, split_task, walked, whole_task
from benchmarks.tune.defaults import Defaults, cases, losses
from benchmarks.tune.methods import reduction
from benchmarks.tune.other import hashed
from benchmarks.tune.surface import Recipe, Surface, SurfaceTask, measure
from benchmarks.tune.threshold import RATIOS, best, by_ratio
from dpilot import Budget
from dpilot.transfer.features import Features
from dpilot.tune import head_options
from dpilot.tune.defaults import head_defaults


def _surface() -> Surface:
    shares = np.arange(12.0).reshape(2, 3, 2) / 12
    return Surface(2, np.array([10.0, 1000.0]), np.array([0.01, 0.1, 1.0]), shares, {100: shares / 2})


def test_reduction_is_that_of_the_published_table() -> None:
    assert reduction(62.63, 44.0, 68.0) == pytest.approx(0.7763, abs=1e-4)


def test_a_cell_of_the_surface_is_found_as_it_was_measured() -> None:
    task = SurfaceTask(_surface(), 1000.0, 100.0, np.random.default_rng(0))
    assert task.looked_up(1000.0, 100.0, seed=1) == pytest.approx((9 / 24, 9 / 12))


def test_between_cells_the_surface_is_between_them_in_logarithms() -> None:
    task = SurfaceTask(_surface(), 1000.0, 100.0, np.random.default_rng(0))
    assert task.looked_up(10.0, 10.0 * 10**-1.5, seed=0)[1] == pytest.approx((0 + 2) / 2 / 12)


@pytest.mark.parametrize("r", [1.0, 150.0, 5000.0])
def test_a_walk_is_split_as_the_autopilot_splits_it(r: float) -> None:
    box = head_defaults(0.5, 50_000, 10).box
    ours, theirs = walked(r, box), box.candidate(r)
    assert abs(ours.steps - theirs.steps) <= 1
    assert ours.r == pytest.approx(theirs.r)


def test_random_searches_three_decades_up_to_the_largest_trial() -> None:
    features = Features.of(np.eye(4), np.arange(4), 4)
    task, budget = whole_task(features.take([0] * 1000)), Budget(1.0, 1e-5)
    space, told = space_of(task, budget), head_options(task, budget)
    assert space.lr.high == pytest.approx(1000 * space.lr.low)
    assert space.lr.high * space.steps.high == pytest.approx(4 * told["fallback"])


def test_letters_are_hashed_the_same_every_time() -> None:
    assert hashed(["Ab"])[0].nonzero().flatten().tolist() == hashed(["ab"])[0].nonzero().flatten().tolist()
    assert float(hashed(["Ab"]).sum()) == 4 + 3 + 2


def test_a_surface_rises_with_the_budget() -> None:
    rows = np.eye(4, dtype=np.float32).repeat(500, 0)
    features = Features.of(rows, np.arange(2000) // 500, 4)
    found = measure(features, features, Recipe(8.0, 20, 20), [1.0, 2000.0], [0.1], seeds=3, sizes=(100,))
    assert found.test[1].min() == 1.0
    assert found.test[0].mean() < 0.9


def test_few_records_and_a_small_budget_make_no_trials() -> None:
    features = Features.of(np.random.default_rng(0).normal(size=(500, 3)), np.arange(500) % 2, 2).unit()
    budget = Budget(0.1, 1e-5)
    tuned = scaled(split_task(features, budget), budget)
    assert tuned.trials == ()
    assert "no trials" in tuned.decisions[0]
    assert data_free(features, budget).model.shape == (3, 2)


def test_a_threshold_is_judged_by_its_best_walk() -> None:
    features = Features.of(np.eye(4, dtype=np.float32).repeat(500, 0), np.arange(2000) // 500, 4)
    found = by_ratio(features, features, Budget(8.0, 1e-5), 0.5, repeats=2, steps=10)
    assert [float(ratio) for ratio in found] == list(RATIOS)
    assert all(len(values) == 2 for values in found.values())
    assert best(found) == 1.0
    assert best({"a": [0.5, 0.7], "b": [0.9, 0.2]}) == pytest.approx(0.6)


def test_choices_are_judged_where_there_are_trials() -> None:
    rows = np.eye(4, dtype=np.float32).repeat(500, 0)
    features = Features.of(rows, np.arange(2000) // 500, 4)
    surface = measure(features, features, Recipe(8.0, 5, 5), [10.0, 2e4], [0.01, 0.1], seeds=2, sizes=(100,))
    whole, tried = losses(cases({"toy": (surface, 50_000)}), Defaults(), repeats=1)
    assert len(whole) == 8
    assert 0 < len(tried) < 8
    assert max(whole) < 100
