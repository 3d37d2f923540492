"""Private selection against reference numbers and against dp-accounting."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from dpilot.privacy import accountant, selection
from dpilot.privacy.budget import Budget
from dpilot.privacy.events import (
    Gaussian,
    PoissonSampled,
    Repeated,
)
from dpilot.privacy.gaussian import gdp_mu
from dpilot.privacy.trials import Poisson, TruncatedNegativeBinomial
from tests.privacy.selection_cases import (
    hockey_stick,
)

DELTA = 1e-5
BASE = Gaussian(3.7306265)  # epsilon 1 at DELTA


# mean: published Renyi bound at shapes 0, .5, 1 and Poisson; an older looser profile bound, the same; the exact
# instance (score = output) at shape 0 and Poisson; composing
TABLE = {
    5: ((1.774, 1.939, 2.081, 1.600), (1.578, 1.673, 1.730, 1.635), (1.102, 1.102), 2.442),
    10: ((1.917, 2.125, 2.310, 2.046), (1.729, 1.878, 1.999, 2.210), (1.143, 1.144), 3.619),
    20: ((2.041, 2.286, 2.511, 2.868), (1.857, 2.048, 2.217, 3.316), (1.184, 2.089), 5.407),
    50: ((2.186, 2.474, 2.749, 4.874), (2.006, 2.243, 2.466, 6.566), (1.235, 3.915), 9.359),
    100: ((2.287, 2.604, 2.913, 6.918), (2.110, 2.377, 2.636, 11.94), (1.273, 5.299), 14.43),
}
CHOICES = (("tnb", 0.0), ("tnb", 0.5), ("tnb", 1.0), ("poisson", 0.0))


def exact_instance(mu, law):
    """epsilon at DELTA when one trial releases N(0, 1) or N(mu, 1) and the score is what it released."""
    y = np.linspace(-12, 12 + mu, 60_001)
    weights = []
    for centre in (0.0, mu):
        tail = norm.sf(y - centre)
        weight = (
            np.exp(-law.mean * tail)
            if isinstance(law, Poisson)
            else (law.gamma / (law.gamma + (1 - law.gamma) * tail)) ** (1 + law.shape)
        )
        weights.append(law.mean * weight * norm.pdf(y - centre) * (y[1] - y[0]))
    return brentq(lambda e: hockey_stick(*weights, e) - DELTA, 0, 40, xtol=1e-6)


@pytest.mark.parametrize("mean", TABLE)
def test_reference_table_at_base_epsilon_one(mean):
    published, looser, instance, composing = TABLE[mean]
    for (law, shape), renyi_epsilon, old in zip(CHOICES, published, looser, strict=True):
        cost = selection.selection(BASE, DELTA, mean_trials=mean, law=law, shape=shape)
        assert cost.renyi_epsilon == pytest.approx(renyi_epsilon, abs=2e-3)
        assert cost.profile_epsilon <= old + 1e-3
        assert cost.epsilon == min(cost.profile_epsilon, cost.renyi_epsilon)
        assert cost.bound == ("profile" if cost.profile_epsilon <= cost.renyi_epsilon else "papernot-steinke")
        assert cost.epsilon >= instance[law == "poisson"] - 1e-3
    assert accountant.epsilon(Repeated(BASE, mean), DELTA) == pytest.approx(composing, abs=6e-3)


@pytest.mark.parametrize("mean", [5, 100])
def test_the_exact_instance_is_below_both_bounds_and_matches_the_reference(mean):
    _, _, reference, _ = TABLE[mean]
    mu = 1 / BASE.noise_multiplier
    for law, expected in ((TruncatedNegativeBinomial(mean, 0.0), reference[0]), (Poisson(mean), reference[1])):
        exact = exact_instance(mu, law)
        assert exact == pytest.approx(expected, abs=1.5e-3)
        name = "poisson" if isinstance(law, Poisson) else "tnb"
        assert selection.selection(BASE, DELTA, mean_trials=mean, law=name).epsilon >= exact


@pytest.mark.parametrize(
    ("base", "published", "looser", "instance"),
    [
        (0.1, (0.217, 0.244, 0.269, 0.222), (0.194, 0.213, 0.229, 0.249), 0.119),
        (0.5, (0.998, 1.113, 1.216, 1.046), (0.897, 0.979, 1.047, 1.145), 0.578),
        (2.0, (3.650, 4.011, 4.329, 4.001), (3.306, 3.563, 3.769, 4.242), 2.262),
    ],
)
def test_reference_rows_at_ten_trials(base, published, looser, instance):
    trial = Gaussian(1 / gdp_mu(Budget(base, DELTA)))
    for (law, shape), renyi_epsilon, old in zip(CHOICES, published, looser, strict=True):
        cost = selection.selection(trial, DELTA, mean_trials=10, law=law, shape=shape)
        assert cost.renyi_epsilon == pytest.approx(renyi_epsilon, rel=3e-3)
        assert instance - 1e-3 <= cost.profile_epsilon <= old + 1e-3


@pytest.mark.parametrize(("mean", "expected"), [(2, 1.178), (10, 1.514)])
def test_the_tight_form_of_the_profile_bound(mean, expected):
    cost = selection.selection(BASE, DELTA, mean_trials=mean)
    assert cost.bound == "profile"
    assert cost.epsilon == pytest.approx(expected, abs=1.5e-3)


@pytest.mark.parametrize(("mean", "shape"), [(1.5, 0.0), (10, 0.0), (10, 1.0), (40, 2.5)])
@pytest.mark.parametrize("sampled", [False, True])
def test_theorem_2_matches_dp_accounting(mean, shape, sampled):
    trial, theirs = _both(sampled)
    expected = _library_rdp(theirs, mean, shape)
    law = TruncatedNegativeBinomial(mean, shape)
    ours = selection.papernot_steinke(law, accountant.ORDERS, accountant.rdp(trial), partial(accountant.delta, trial))
    np.testing.assert_allclose(ours, expected, rtol=1e-7)


@pytest.mark.parametrize("mean", [3, 10, 40])
def test_theorem_6_matches_dp_accounting_given_its_weaker_delta(mean):
    from dp_accounting.rdp import rdp_privacy_accountant as library

    trial, theirs = _both(sampled=False)
    values, law = accountant.rdp(trial), Poisson(mean)
    weaker = selection.papernot_steinke(
        law, accountant.ORDERS, values, lambda e: library.compute_delta(accountant.ORDERS, values, e)[0]
    )
    ours = selection.papernot_steinke(law, accountant.ORDERS, values, partial(accountant.delta, trial))
    expected = np.minimum.accumulate(_library_rdp(theirs, mean, math.inf)[::-1])[::-1]
    no_trial = np.exp(-mean) / mean / (np.array(accountant.ORDERS) - 1)
    assert (weaker >= expected * (1 - 1e-9)).all()
    assert (weaker <= expected * (1 + 1e-9) + no_trial).all()
    assert (ours <= weaker * (1 + 1e-9)).all()


def _both(sampled):
    from dp_accounting import dp_event

    if not sampled:
        return BASE, dp_event.GaussianDpEvent(BASE.noise_multiplier)
    step = dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.5))
    return Repeated(PoissonSampled(0.01, Gaussian(1.5)), 100), dp_event.SelfComposedDpEvent(step, 100)


def _library_rdp(event, mean, shape):
    from dp_accounting import dp_event
    from dp_accounting.rdp import RdpAccountant

    book = RdpAccountant(list(accountant.ORDERS))
    book.compose(dp_event.RepeatAndSelectDpEvent(event, mean, shape))
    return np.asarray(book.rdp)
