"""What private selection costs, event by event."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest

from dpilot.errors import InvalidInput
from dpilot.privacy import accountant, selection
from dpilot.privacy.events import (
    ApproxDP,
    Composed,
    Gaussian,
    OneOf,
    PoissonSampled,
    PureDP,
    RepeatAndSelect,
    Repeated,
)
from dpilot.privacy.gaussian import gdp_delta
from dpilot.privacy.trials import Poisson, TruncatedNegativeBinomial
from tests.privacy.selection_cases import (
    LAWS,
)

DELTA = 1e-5
BASE = Gaussian(3.7306265)  # epsilon 1 at DELTA


def test_equal_epsilon_is_not_domination_so_candidates_cost_their_pointwise_maximum():
    candidates = [
        BASE,
        Repeated(PoissonSampled(0.01, Gaussian(1.4168)), 1000),
        Repeated(PoissonSampled(1e-3, Gaussian(0.63995)), 1000),
    ]
    alone = [selection.selection(c, DELTA, mean_trials=10) for c in candidates]
    together = selection.selection(OneOf(candidates), DELTA, mean_trials=10)
    assert [c.renyi_epsilon for c in alone[:2]] == pytest.approx([1.917, 1.931], abs=4e-3)
    for name in ("profile_epsilon", "renyi_epsilon"):
        assert getattr(together, name) > 1.02 * max(getattr(c, name) for c in alone)
    for e in (0.0, 0.3, 1.0, 2.0):
        largest = max(accountant.delta(c, e) for c in candidates)
        assert selection.profile(OneOf(candidates))(e) == pytest.approx(largest)


@pytest.mark.parametrize("law", ["tnb", "poisson"])
def test_epsilon_and_delta_are_inverse_and_fall_and_grow_as_they_should(law):
    event = RepeatAndSelect(BASE, 8, law)
    for d in (1e-9, 1e-5, 1e-2):
        assert selection.delta(event, selection.epsilon(event, d)) == pytest.approx(d, rel=1e-3)
    deltas = [selection.delta(event, e) for e in (0.0, 0.2, 0.5, 1.0, 2.0, 4.0)]
    assert deltas == sorted(deltas, reverse=True)
    assert all(0 <= d <= 1 for d in deltas)
    by_mean = [selection.epsilon(RepeatAndSelect(BASE, m, law), DELTA) for m in (1.5, 2, 5, 20, 100)]
    assert by_mean == sorted(by_mean)
    by_noise = [selection.epsilon(RepeatAndSelect(Gaussian(s), 8, law), DELTA) for s in (0.5, 1, 4, 20)]
    assert by_noise == sorted(by_noise, reverse=True)


def test_selection_costs_more_than_one_trial_and_hardly_more_when_hardly_more_is_run():
    assert 1 <= selection.epsilon(RepeatAndSelect(BASE, 1.000001), DELTA) < 1.001


def test_a_pessimistic_curve_only_raises_the_bound():
    exact, law = partial(accountant.delta, BASE), TruncatedNegativeBinomial(10, 0.0)
    for slack in (1e-7, 1e-4, 0.3):

        def worse(e, slack=slack):
            return min(1.0, exact(e) + slack)

        assert selection.shift(law, worse) >= selection.shift(law, exact)
        assert selection.shift(Poisson(3), worse) >= selection.shift(Poisson(3), exact)


def test_the_shift_stays_finite_when_the_trial_has_no_privacy_at_all():
    law = TruncatedNegativeBinomial(10, 0.5)
    assert selection.shift(law, lambda _: 1.0) == pytest.approx(1.5 * math.log(1 / law.gamma))
    assert selection.shift(Poisson(7), lambda _: 1.0) == pytest.approx(7)


def test_the_shift_is_the_least_over_a_grid_of_first_epsilons():
    curve = partial(accountant.delta, BASE)
    for law in LAWS[:7]:
        gamma, grid = law.gamma, np.linspace(0, 5, 5001)
        d = np.array([curve(e) for e in grid])
        ends = np.maximum(1 + (1 - gamma) / gamma * d, 1 / (gamma + (1 - gamma) * (1 - d) * np.exp(-grid)))
        least = (1 + law.shape) * math.log(ends.min())
        assert least - 2e-3 * (1 + law.shape) <= selection.shift(law, curve) <= least + 1e-12


def test_the_profile_below_zero_is_that_of_the_exchanged_direction():
    curve = selection.profile(BASE)
    mu = 1 / BASE.noise_multiplier
    for e in (-2.0, -0.3, -1e-6, 0.0, 0.4):
        assert curve(e) == pytest.approx(gdp_delta(mu, e), rel=1e-9)


def test_a_trial_so_private_that_delta_covers_it_costs_nothing():
    assert selection.selection(Gaussian(1e8), 0.01, mean_trials=5).epsilon == 0.0
    assert selection.selection(Gaussian(1.0), 0.2, mean_trials=0.1, law="poisson").profile_epsilon == 0.0


def test_a_trial_of_which_only_one_epsilon_and_delta_are_known_uses_the_profile_bound_alone():
    trial = Composed([Gaussian(5.0), ApproxDP(0.1, 1e-8)])
    cost = selection.selection(trial, DELTA, mean_trials=10)
    assert cost.bound == "profile"
    assert cost.renyi_epsilon == math.inf
    assert cost.epsilon > selection.selection(Gaussian(5.0), DELTA, mean_trials=10).profile_epsilon
    assert (
        selection.selection(Composed([Gaussian(5.0), ApproxDP(0.1, 2e-6)]), DELTA, mean_trials=10).epsilon == math.inf
    )


@pytest.mark.parametrize(
    "trial",
    [
        ApproxDP(0.5, 1e-7),
        Repeated(ApproxDP(0.5, 1e-7), 3),
        OneOf([BASE, ApproxDP(0.5, 1e-7)]),
        PoissonSampled(0.1, ApproxDP(0.5, 1e-7)),
        RepeatAndSelect(ApproxDP(0.5, 1e-7), 2),
    ],
    ids=lambda trial: type(trial).__name__,
)
def test_its_delta_is_never_left_unscaled_through_a_renyi_curve(trial):
    with pytest.raises(InvalidInput, match="ApproxDP"):
        selection.selection_curve(RepeatAndSelect(trial, 100), accountant.ORDERS)
    cost = selection.selection(trial, 1e-3, mean_trials=100)
    assert cost.renyi_epsilon == math.inf
    assert cost.epsilon < math.inf


def test_pure_trials_stay_within_the_pure_bound():
    for shape in (0.0, 1.0):
        cost = selection.selection(PureDP(0.3), 1e-12, mean_trials=10, shape=shape)
        assert cost.epsilon <= (2 + shape) * 0.3 + 2e-3


def test_selections_compose_under_renyi_and_no_worse_than_published():
    event = RepeatAndSelect(BASE, 10)
    ours = selection.selection_curve(event, accountant.ORDERS)
    published = selection.papernot_steinke(
        TruncatedNegativeBinomial(10), accountant.ORDERS, accountant.rdp(BASE), partial(accountant.delta, BASE)
    )
    assert (ours <= published).all()
    a = np.array(accountant.ORDERS)
    moved = selection.shift(TruncatedNegativeBinomial(10), partial(accountant.delta, BASE))
    np.testing.assert_allclose(ours[-50:], (accountant.rdp(BASE) + moved + math.log(10) / (a - 1))[-50:])
    both = accountant.epsilon(Composed([event, BASE]), DELTA, accountant="rdp")
    assert both > accountant.rdp_epsilon(accountant.ORDERS, ours, DELTA)
    assert (np.diff(ours) >= 0).all()


def test_a_selection_of_selections_costs_more_than_the_inner_one():
    inner = RepeatAndSelect(BASE, 3)
    assert selection.epsilon(RepeatAndSelect(inner, 3), DELTA) > selection.epsilon(inner, DELTA)


def test_the_short_form_prices_the_run_it_describes():
    numbers = {"noise_multiplier": 1.0, "sample_rate": 0.02, "steps": 50}
    event = Repeated(PoissonSampled(0.02, Gaussian(1.0)), 50)
    for law in ("tnb", "poisson"):
        short = selection.selection_epsilon(**numbers, delta=DELTA, mean_trials=4, law=law)
        assert short == selection.selection(event, DELTA, mean_trials=4, law=law).epsilon
        assert short == accountant.epsilon(RepeatAndSelect(event, 4, law), DELTA)


@pytest.mark.parametrize(
    "change",
    [
        {"delta": 0.0},
        {"delta": 1.0},
        {"mean_trials": 1.0},
        {"mean_trials": math.nan},
        {"law": "binomial"},
        {"shape": -1.0},
        {"sample_rate": 0.0},
        {"steps": 0},
        {"noise_multiplier": -1.0},
    ],
    ids=str,
)
def test_bad_numbers_are_refused(change):
    numbers = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 5, "delta": DELTA, "mean_trials": 4} | change
    with pytest.raises(InvalidInput):
        selection.selection_epsilon(**numbers)
