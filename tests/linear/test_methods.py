"""What each method is: without noise least squares or its published form, with noise guarded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpilot.linear.auto import _draw_to_centre, _is_astray, _leave, choose_candidate
from dpilot.linear.descent import (
    Descent,
    StepSchedule,
    _cheapest,
    _distribution,
    _Place,
    _quantile,
    _State,
    _take_step,
    descend,
)
from dpilot.linear.dpgd import Dpgd, shrink
from dpilot.linear.estimators import LinearRegression
from dpilot.linear.gram_matrix import Gram, average_grams
from dpilot.linear.methods import METHODS
from dpilot.linear.problem import LinearProblem
from dpilot.linear.row_gradients import GridRows
from dpilot.linear.rows import MemoryRows
from dpilot.linear.solution import Solution
from dpilot.mechanism import seeded_noise
from dpilot.privacy.budget import Budget
from dpilot.tape import tape
from tests.linear.helpers import line, table
from tests.statistics.helpers import Anything
from tests.tapes import NoiseFree

CLOSE = {"auto": 0.02, "dpgd": 0.02, "adassp": 0.02, "boosted": 0.05, "ssp": 0.02, "adaclip": 0.05, "bsgs": 0.05}


@pytest.mark.parametrize("method", CLOSE)
def test_with_a_large_budget_every_method_is_least_squares(method):
    X, y, _ = line(20_000, 3, noise=0.3)
    best = np.linalg.lstsq(X, y, rcond=None)[0]
    model = LinearRegression(200.0, method=method, bounds="standardised", fit_intercept=False).fit(X, y)
    assert model.coef_ == pytest.approx(best, abs=CLOSE[method])


def test_every_name_of_the_interface_is_there():
    assert set(METHODS) == {"auto", "dpgd", "adassp", "boosted", "ssp", "adaclip", "bsgs", "tukey"}


def test_without_noise_the_steps_reach_least_squares():
    rows = table(3000, 3)
    schedule = StepSchedule((1.0,) * 30, burn_in=20, noise=1e-6)
    with tape(NoiseFree()):
        found = descend(
            GridRows.of(MemoryRows.of(rows)), np.zeros((3, 1)), schedule, threshold=2.0, size=3000, receipt=Anything(),
            noise=seeded_noise(0),
        )  # fmt: skip
    best = np.linalg.lstsq(rows[:, :-1], rows[:, -1], rcond=None)[0]
    assert found.weights[:, 0] == pytest.approx(best, abs=0.01)


def test_steps_that_overshoot_are_taken_back():
    rows = table(3000, 3) * [3.0, 3.0, 3.0, 1.0]  # nine times the curvature that the steps reckon with
    schedule = StepSchedule((1.0,) * 40, burn_in=20, noise=1e-6)
    with tape(NoiseFree()):
        found = descend(
            GridRows.of(MemoryRows.of(rows)), np.zeros((3, 1)), schedule, threshold=5.0, size=3000, receipt=Anything(),
            noise=seeded_noise(0),
        )  # fmt: skip
    assert np.abs(found.weights).max() < 1.0
    assert found.noise > 0  # of where it was taken back to


@pytest.mark.parametrize("rising", [True, False])
def test_where_it_may_not_rise_the_clip_level_only_falls(rising):
    rows = table(3000, 3) * [1.0, 1.0, 1.0, 8.0]  # residuals far longer than the first level
    schedule = StepSchedule((1.0,) * 10, burn_in=6, noise=1e-6, rising=rising)
    with tape(NoiseFree()):
        levels = descend(
            GridRows.of(MemoryRows.of(rows)), np.zeros((3, 1)), schedule, threshold=1.0, size=3000, receipt=Anything(),
            noise=seeded_noise(0),
        ).thresholds  # fmt: skip
    assert (max(levels) > 2.0) is rising
    assert bool((np.diff(levels) <= 0).all()) is not rising


@pytest.mark.parametrize(("size", "rising"), [(20_000, True), (5_000, False)])
def test_declared_numbers_alone_say_whether_the_clip_level_may_rise(size, rising):
    problem = LinearProblem(20, False, float(size), Budget(0.1, 1e-5))
    assert Dpgd().schedule(problem, 1.0).rising is rising


def test_norms_that_grow_by_no_more_than_noise_take_no_step_back():
    weights, gradient = np.zeros((2, 1)), np.ones((2, 1))
    here = _Place(weights + 1.0, 0.3, 1.0)
    state = _State(here, best=_Place(weights, 0.1, 0.5), least=0.4)
    shares = np.array([0.0, 0.0, 0.1, 0.2, 0.2, 0.2, 0.2, 0.1, 0.0, 0.0])  # a median of 1, more than twice the least
    quiet, loud = (
        _take_step(state, gradient, shares, sigma, StepSchedule((1.0,), 0, 1e-3), size=1000.0, early=False)
        for sigma in (0.01, 40.0)
    )
    assert quiet.at is state.best
    assert quiet.pace == 0.5
    assert loud.at is not state.best
    assert (loud.at.weights > 1.0).all()


def test_the_distribution_of_norms_is_read_from_its_bins():
    shares = np.array([0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1])
    assert _distribution(shares) == pytest.approx(np.arange(1, 10) / 10)
    assert _quantile(_distribution(shares), 0.5) == pytest.approx(1.0)


def test_more_noise_clips_lower_and_more_bias_higher():
    shares = np.array([0.05, 0.1, 0.15, 0.15, 0.15, 0.15, 0.1, 0.1, 0.05, 0.0])
    below = _distribution(shares)
    quiet, loud = (_cheapest(shares, below, StepSchedule((1.0,), 0, noise)) for noise in (0.001, 0.5))
    aligned = _cheapest(shares, below, StepSchedule((1.0,), 0, 0.05, alignment=1.0))
    apart = _cheapest(shares, below, StepSchedule((1.0,), 0, 0.05, alignment=0.01))
    assert loud < quiet
    assert apart < aligned


def noisy(moments, noise=0.0):
    return Gram(np.asarray(moments, dtype=float), noise, 1.0)


def test_noise_alone_whitens_nothing():
    rng = np.random.default_rng(0)
    draw = rng.normal(size=(31, 31))
    seen = noisy(np.eye(31) + 0.7 * (draw + draw.T) / 2, 0.7)
    whitened = seen.whitening().T @ seen.whitening()
    assert np.diag(whitened) == pytest.approx(np.ones(30), rel=0.35)
    assert noisy(np.diag([4.0, 1.0, 1.0])).whitening() == pytest.approx(np.diag([0.5, 1.0])[:, ::-1])


def found_by_steps(weights, noise, moments, gram_noise=0.0):
    weights = np.asarray(weights, dtype=float)
    steps = Descent(weights[:, None], noise, ())
    return Solution(weights, noisy(moments, gram_noise), noise, np.eye(weights.size), steps)


TRUE = [[1.0, 0.0, 0.9], [0.0, 1.0, 0.1], [0.9, 0.1, 1.0]]


def test_auto_keeps_the_steps_that_are_good():
    assert choose_candidate(found_by_steps([0.9, 0.1], 0.0, TRUE, 0.01), intercept=False).choice == "steps"


def test_auto_leaves_steps_that_went_astray_for_the_moments():
    picked = choose_candidate(found_by_steps([-3.0, 2.0], 0.0, TRUE, 0.001), intercept=False)
    assert picked.choice.startswith("moments")
    assert picked.theta == pytest.approx([0.9, 0.1], abs=0.02)


def test_auto_predicts_the_centre_where_nothing_beats_it():
    picked = choose_candidate(found_by_steps([5.0, 5.0], 0.0, np.eye(3), 0.1), intercept=True)
    assert picked.choice == "centre"
    assert picked.theta.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("gain", "kept", "choice"),
    [
        (0.5, 1.0, "steps"),
        (0.0, 1.0, "steps"),
        (-0.1, 0.5, "steps, drawn to the centre"),
        (-0.2, 0.0, "centre"),
        (-9.0, 0.0, "centre"),
    ],
)
def test_a_choice_is_drawn_to_the_centre_by_how_far_below_nothing_its_gain_is(gain, kept, choice):
    moments = [[1.0, 0.0, 0.9], [0.0, 1.0, 0.5], [0.9, 0.5, 1.0]]  # so noisy that the check alone decides
    found = replace(found_by_steps([3.0, 2.0], 0.0, moments, 1e9), choice="steps")
    drawn = _draw_to_centre(found, intercept=True, gain=gain, noise=0.1)
    assert drawn.choice == choice
    assert drawn.theta == pytest.approx([3.0 * kept, 2.0 * kept], abs=1e-6)


def test_a_check_within_its_noise_does_not_undo_what_precise_moments_say():
    good = replace(found_by_steps([0.9, 0.1], 0.0, TRUE, 0.01), choice="steps")
    assert _draw_to_centre(good, intercept=False, gain=-0.2, noise=0.2) is good
    bad = found_by_steps([-3.0, 2.0], 0.0, TRUE, 0.01)
    assert _draw_to_centre(bad, intercept=False, gain=0.2, noise=0.2).choice == "centre"
    centre = found_by_steps([0.0, 0.0], 0.0, TRUE, 0.01)
    assert _draw_to_centre(centre, intercept=False, gain=-9.0, noise=0.1) is centre


def test_auto_abstains_where_the_noise_of_the_steps_drowns_them():
    assert choose_candidate(found_by_steps([9.0, 1.0], 0.6, TRUE, 0.01), intercept=False).choice == "centre"


@pytest.mark.parametrize(
    ("weights", "noise", "gram_noise", "left"),
    [
        ((-3.0, 2.0), 0.0, 0.001, True),  # far from the moments' solution
        ((0.9, 0.1), 0.0, 0.001, False),  # at it
        ((-3.0, 2.0), 0.6, 0.001, False),  # drowned: the steps go on, and the centre is predicted
        ((0.4, 0.1), 0.0, 0.5, False),  # who can tell
        ((0.7, 0.1), 0.15, 0.001, False),  # no further than the noise of one step, which averaging takes off
    ],
)
def test_steps_are_left_where_the_moments_are_better_beyond_their_noise(weights, noise, gram_noise, left):
    seen = noisy(TRUE, gram_noise)
    inverse = np.linalg.inv(seen.whitening())
    assert _leave(seen)(inverse @ np.array(weights)[:, None], noise) is left


def test_steps_that_are_left_stop_after_the_burn_in():
    rows, seen = table(3000, 3), []
    schedule = StepSchedule((1.0,) * 30, burn_in=20, noise=1e-6)
    with tape(NoiseFree()):
        found = descend(
            GridRows.of(MemoryRows.of(rows)), np.zeros((3, 1)), schedule, threshold=2.0, size=3000, receipt=Anything(),
            noise=seeded_noise(0), leave=lambda *what: seen.append(what) or True,
        )  # fmt: skip
    assert len(found.thresholds) == 20
    assert found.weights is seen[0][0]
    assert 0 < found.noise < 0.01


def test_moments_bought_again_are_averaged_by_their_noise():
    rows = MemoryRows.of(table(3000, 2))
    first = noisy(np.zeros((3, 3)), 0.01)
    multipliers = (0.01 * 3000, 0.02 * 3000)  # as noisy as the first, and twice as noisy
    with tape(NoiseFree()):
        more = average_grams(rows, first, multipliers, size=3000.0, receipt=Anything(), noise=seeded_noise(0))
    assert more.noise == pytest.approx(0.01 / np.sqrt(2.25))
    clipped = rows.chunk.values / np.maximum(np.linalg.norm(rows.chunk.values, axis=1, keepdims=True), 1.0)
    assert more.moments == pytest.approx(clipped.T @ clipped / 3000 * 1.25 / 2.25, abs=1e-5)


def test_steps_are_shrunk_by_their_noise():
    assert shrink(found_by_steps([3.0, 4.0], 0.0, TRUE)) == pytest.approx([3.0, 4.0])
    assert shrink(found_by_steps([3.0, 4.0], 2.0, TRUE)) == pytest.approx(np.array([3.0, 4.0]) * (1 - 8 / 25))
    assert not shrink(found_by_steps([0.3, 0.4], 2.0, TRUE)).any()


@pytest.mark.parametrize(("n", "epsilon"), [(120, 1.0), (1000, 0.1)])
def test_noise_that_dominates_gives_no_catastrophe(n, epsilon):
    scales = 10.0 ** np.arange(-6.0, 6.0)
    for seed in range(4):
        X, y, _ = line(n, 12, seed)
        assert LinearRegression(epsilon).fit(X * scales, 1e3 * y).score(X * scales, 1e3 * y) > -100


def test_a_target_of_which_nothing_is_known_is_predicted_by_its_centre():
    X, y, _ = line(60, 12)
    for _ in range(5):
        model = LinearRegression(0.1, method="dpgd").fit(X * 1e9, y)
        assert np.abs(model.predict(X * 1e9)).max() < 1e-6


@pytest.mark.parametrize(
    ("levels", "rising", "astray"), [((2, 2), False, True), ((2, 1), False, False), ((2, 2), True, False)]
)
def test_a_clip_level_that_only_falls_and_never_did_tells_that_steps_went_astray(levels, rising, astray):
    found = Solution(np.zeros(1), descent=Descent(np.zeros((1, 1)), 0.0, levels))
    assert _is_astray(found, StepSchedule((1.0, 1.0), 1, 0.1, rising=rising)) is astray
