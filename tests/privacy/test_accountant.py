"""Epsilons: published reference numbers, a second accountant, and refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from dpilot import Budget, privacy
from dpilot.errors import InvalidInput
from dpilot.privacy import accountant
from dpilot.privacy.events import (
    ApproxDP,
    Composed,
    ExponentialMechanism,
    Gaussian,
    OneOf,
    PoissonSampled,
    PureDP,
    RepeatAndSelect,
    Repeated,
    nothing,
    selects,
)
from tests.privacy import second_accountant
from tests.thin import thin

OPACUS_ORDERS = [1 + x / 10 for x in range(1, 100)] + list(range(12, 64))


def steps(q: float, sigma: float, times: int) -> Repeated:
    return Repeated(PoissonSampled(q, Gaussian(sigma)), times)


# mu of (epsilon, delta), from the notes on the papers (section C1)
MU = {
    1e-5: {
        0.01: 0.004102,
        0.05: 0.017310,
        0.1: 0.032521,
        0.2: 0.061334,
        0.5: 0.142211,
        0.88: 0.238568,
        0.9: 0.243509,
        0.96: 0.258266,
        0.97: 0.260717,
        1: 0.268051,
        2: 0.501552,
        3: 0.719117,
        4: 0.924931,
        8: 1.666031,
    },
    1 / (2 * 1281167): {0.1: 0.026032, 0.2: 0.049970, 0.88: 0.201032, 1: 0.226524, 8: 1.484964},
}


@pytest.mark.parametrize(("delta", "epsilon", "mu"), [(d, e, m) for d, row in MU.items() for e, m in row.items()])
def test_gaussian_dp_table(delta: float, epsilon: float, mu: float) -> None:
    budget = Budget(epsilon, delta)
    assert privacy.gdp_mu(budget) == pytest.approx(mu, abs=6e-7)
    assert budget.epsilon * (1 - 1e-7) <= privacy.gdp_epsilon(privacy.gdp_mu(budget), delta) <= budget.epsilon


def test_one_gaussian_at_one() -> None:
    assert privacy.noise_multiplier(Budget(1.0, 1e-5), sample_rate=1, steps=1) == pytest.approx(3.73063, abs=1e-5)


@pytest.mark.parametrize(
    ("first", "second", "final", "total"),
    [(0.1, 0.2, 0.88, 0.99634), (0.05, 0.1, 0.96, 0.99173), (0.01, 0.1, 0.97, 0.99498), (0.05, 0.2, 0.9, 0.99717)],
)
def test_linear_scaling_compositions(first: float, second: float, final: float, total: float) -> None:
    """Panda et al.: three trials at each of two budgets, and the final run; mu^2 adds."""

    def trials(epsilon: float, times: int) -> Repeated:
        return Repeated(Gaussian(1 / privacy.gdp_mu(Budget(epsilon, 1e-5))), times)

    event = Composed([trials(first, 3), trials(second, 3), trials(final, 1)])
    assert accountant.epsilon(event, 1e-5, "gdp") == pytest.approx(total, abs=1e-5)
    assert accountant.epsilon(event, 1e-5, "pld") == pytest.approx(total, abs=1e-5)


def test_linear_scaling_mu() -> None:
    square = 3 * privacy.gdp_mu(Budget(0.1, 1e-5)) ** 2 + 3 * privacy.gdp_mu(Budget(0.2, 1e-5)) ** 2
    assert math.sqrt(square + privacy.gdp_mu(Budget(0.88, 1e-5)) ** 2) == pytest.approx(0.267157, abs=1e-6)


@pytest.mark.parametrize(
    ("times", "epsilon", "sigma"),
    [(10, 0.01, 770.917), (75, 0.01, 2111.244), (25, 0.1, 153.748), (100, 0.97, 38.356), (15, 0.1, 119.0926)],
)
def test_full_batch_noise_multipliers(times: int, epsilon: float, sigma: float) -> None:
    assert privacy.noise_multiplier(Budget(epsilon, 1e-5), sample_rate=1.0, steps=times) == pytest.approx(
        sigma, abs=6e-4
    )


@pytest.mark.parametrize(("times", "epsilon"), [(1, 0.9160), (2, 0.9341), (5, 0.9608), (14, 0.9975)])
def test_slaclip_table_7(times: int, epsilon: float) -> None:
    """The modern conversion at sigma 1, q 1/118, delta 1e-5, with the orders of Opacus."""
    curve = accountant.rdp(steps(1 / 118, 1.0, times), OPACUS_ORDERS)
    assert accountant.rdp_epsilon(OPACUS_ORDERS, curve, 1e-5) == pytest.approx(epsilon, abs=5e-5)
    ours = privacy.epsilon(noise_multiplier=1.0, sample_rate=1 / 118, steps=times, delta=1e-5, accountant="rdp")
    assert ours == pytest.approx(epsilon, abs=5e-5)


TABLE_2 = [  # size, epochs, batch, delta, {epsilon: (published sigma, modern sigma)}
    (50_000, 90, 512, 1e-5, {4: (1.441, 1.3205), 6: (1.103, 1.0373), 8: (0.942, 0.8988)}),
    (50_000, 90, 2048, 1e-5, {4: (2.654, 2.3900), 6: (1.905, 1.7570), 8: (1.539, 1.4417)}),
    (60_000, 30, 256, 1e-5, {1: (1.915, 1.6275), 2: (1.143, 1.0359), 3: (0.920, 0.8574)}),
    (25_000, 90, 512, 1e-5, {2: (3.504, 3.0339)}),
    (12_500, 30, 1024, 8e-5, {1: (7.338, 5.8850), 2: (3.849, 3.2592), 3: (2.702, 2.3560)}),
]


@pytest.mark.parametrize(
    ("size", "epochs", "batch", "delta", "epsilon", "classic", "modern"),
    [(n, e, b, d, eps, *sigmas) for n, e, b, d, row in TABLE_2 for eps, sigmas in row.items()],
)
def test_slaclip_table_2_by_both_conversions(
    size: int, epochs: int, batch: int, delta: float, epsilon: float, classic: float, modern: float
) -> None:
    """Published sigmas come from the classic conversion; the modern one needs less noise for the same epsilon."""
    times = math.ceil(size / batch) * epochs
    orders = np.array(OPACUS_ORDERS)
    curve = accountant.rdp(steps(batch / size, classic, times), OPACUS_ORDERS)
    assert np.nanmin(curve + math.log(1 / delta) / (orders - 1)) == pytest.approx(epsilon, rel=4e-3)
    curve = accountant.rdp(steps(batch / size, modern, times), OPACUS_ORDERS)
    assert accountant.rdp_epsilon(OPACUS_ORDERS, curve, delta) == pytest.approx(epsilon, rel=1e-3)


@pytest.mark.parametrize(
    ("q", "sigma", "times", "pld", "rdp"),
    [
        (0.01, 1, 1000, 1.8282, 2.1014),
        (0.1, 2, 100, 2.3374, 2.5806),
        (1e-4, 0.6, 100_000, 0.6093, 1.8196),
        (512 / 50_000, 1.3205, math.ceil(50_000 / 512) * 90, 3.684, 4.0),
        (512 / 60_000, 2.2020, math.ceil(60_000 / 512) * 30, 0.912, 1.0),
    ],
)
def test_pld_and_rdp_pairs(q: float, sigma: float, times: int, pld: float, rdp: float) -> None:
    event = steps(q, sigma, times)
    assert accountant.epsilon(event, 1e-5, "pld") == pytest.approx(pld, abs=6e-4)
    assert accountant.epsilon(event, 1e-5, "rdp") == pytest.approx(rdp, rel=2e-3)


def test_fourier_accountant_reference() -> None:
    assert accountant.delta(steps(0.01, 4.0, 10_000), 1.0) == pytest.approx(4.243484e-06, rel=3e-3)


def random_cases(count: int) -> list[tuple[float, float, int, float]]:
    draw = np.random.default_rng(7)
    return [
        (
            float(10 ** draw.uniform(-2.5, -0.4)),
            float(10 ** draw.uniform(-0.1, 0.8)),
            int(10 ** draw.uniform(0, 3.3)),
            float(10 ** draw.uniform(-7, -4)),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize(("q", "sigma", "times", "delta"), thin(random_cases(10), 5))
def test_a_second_accountant_agrees(q: float, sigma: float, times: int, delta: float) -> None:
    ours = accountant.epsilon(steps(q, sigma, times), delta)
    theirs = second_accountant.epsilon(q, sigma, times, delta)
    assert ours == pytest.approx(theirs, rel=4e-3, abs=3e-3)
    assert ours >= theirs * (1 - 1e-3) - 1e-3
    assert accountant.epsilon(steps(q, sigma, times), delta, "rdp") >= ours * (1 - 1e-6)


def test_epsilon_and_delta_are_inverse() -> None:
    event = Composed([steps(0.02, 1.5, 300), Gaussian(6.0), PureDP(0.05)])
    epsilon = accountant.epsilon(event, 1e-6)
    assert accountant.delta(event, epsilon) <= 1e-6 * (1 + 1e-6)
    assert accountant.delta(event, epsilon * 0.995) > 1e-6


def test_queries_on_one_subsample_are_one_gaussian() -> None:
    """Esipova et al. add two separately sampled curves: 11.06 where the joint release costs 16.10."""
    joint = Repeated(PoissonSampled(0.1, Composed([Gaussian(1.0), Gaussian(1.0)])), 100)
    apart = Repeated(Composed([PoissonSampled(0.1, Gaussian(1.0))] * 2), 100)
    merged = steps(0.1, 2**-0.5, 100)
    assert accountant.epsilon(joint, 1e-5, "rdp") == pytest.approx(16.10, abs=0.01)
    assert accountant.epsilon(apart, 1e-5, "rdp") == pytest.approx(11.06, abs=0.01)
    assert accountant.epsilon(joint, 1e-5) == accountant.epsilon(merged, 1e-5)


def test_repeat_counts_count() -> None:
    """dp-accounting ignores them for some events."""
    for event in (ExponentialMechanism(0.1), PureDP(0.1), ApproxDP(0.1, 1e-9)):
        for name in ("pld", "rdp"):
            once = accountant.epsilon(event, 1e-6, name)
            assert accountant.epsilon(Repeated(event, 10), 1e-6, name) > 3 * once
            assert accountant.epsilon(Repeated(event, 10), 1e-6, name) == pytest.approx(
                accountant.epsilon(Composed([event] * 10), 1e-6, name)
            )
    ten = Repeated(ExponentialMechanism(0.1), 10)
    assert accountant.epsilon(ten, 1e-6, "rdp") == pytest.approx(0.700, abs=2e-3)
    assert accountant.epsilon(ten, 1e-6) == pytest.approx(0.999, abs=2e-3)


def test_pure_dp_is_not_half_epsilon_gdp() -> None:
    assert accountant.gdp_mu(PureDP(1.0)) == pytest.approx(1.2320353853, abs=1e-9)
    assert accountant.gdp_delta(accountant.gdp_mu(PureDP(1.0)), 0.0) == pytest.approx(math.tanh(0.5), abs=1e-9)


def test_approximate_dp_enters_by_sums_under_renyi() -> None:
    event = Composed([Gaussian(5.0), ApproxDP(0.3, 4e-6)])
    rest = accountant.epsilon(Gaussian(5.0), 6e-6, "rdp")
    assert accountant.epsilon(event, 1e-5, "rdp") == pytest.approx(0.3 + rest)
    assert accountant.epsilon(event, 4e-6, "rdp") == math.inf
    assert accountant.epsilon(event, 1e-5, "pld") <= 0.3 + rest + 1e-3


def test_sampling_amplifies_pure_and_approximate_dp() -> None:
    pure = PoissonSampled(0.1, PureDP(1.0))
    amplified = math.log1p(0.1 * math.expm1(1.0))
    assert accountant.epsilon(pure, 1e-9) == pytest.approx(amplified, abs=2e-4)
    assert accountant.delta(PoissonSampled(0.1, ApproxDP(1.0, 1e-3)), amplified + 2e-4) == pytest.approx(1e-4, rel=0.01)


def test_one_of_costs_the_pointwise_maximum() -> None:
    options = [Gaussian(3.0), steps(0.01, 0.7, 200)]
    either = OneOf(options)
    for epsilon in (0.1, 0.5, 1.0, 3.0):
        assert accountant.delta(either, epsilon) == max(accountant.delta(option, epsilon) for option in options)
    assert np.array_equal(accountant.rdp(either), np.maximum(*(accountant.rdp(option) for option in options)))
    both = Composed([either, Gaussian(4.0)])
    worst = max(accountant.epsilon(Composed([option, Gaussian(4.0)]), 1e-5) for option in options)
    assert accountant.epsilon(both, 1e-5) == worst


def test_nothing_costs_nothing() -> None:
    for name in ("pld", "rdp", "gdp"):
        assert accountant.epsilon(nothing(), 1e-5, name) <= 1e-3
    assert accountant.epsilon(nothing(), 1e-5) == 0
    assert accountant.delta(nothing(), 0.0) == 0


def test_gdp_is_refused_for_sampled_steps() -> None:
    with pytest.raises(InvalidInput, match="under-reports"):
        privacy.epsilon(noise_multiplier=1.0, sample_rate=0.5, steps=10, delta=1e-5, accountant="gdp")
    exact = privacy.epsilon(noise_multiplier=10.0, sample_rate=1, steps=10, delta=1e-5, accountant="gdp")
    assert privacy.epsilon(noise_multiplier=10.0, sample_rate=1, steps=10, delta=1e-5) == exact


def test_selection_inside_a_composition_needs_renyi() -> None:
    selection = RepeatAndSelect(Gaussian(8.0), mean_trials=5)
    event = Composed([selection, Gaussian(10.0)])
    with pytest.raises(InvalidInput, match='accountant="rdp"'):
        accountant.epsilon(event, 1e-5)
    assert accountant.epsilon(event, 1e-5, "rdp") > accountant.epsilon(selection, 1e-5)
    assert selects(event)
    assert not selects(Gaussian(1.0))


def test_huge_losses_do_not_exhaust_memory() -> None:
    import resource

    assert accountant.epsilon(steps(0.1, 0.5, 10_000), 1e-5) > 100
    assert accountant.epsilon(steps(0.5, 0.05, 100), 1e-5) > 1000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 * 1024**2


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"sample_rate": 0.0}, "sample_rate"),
        ({"sample_rate": 1.5}, "sample_rate"),
        ({"steps": 0}, "steps"),
        ({"steps": 2.5}, "steps"),
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"noise_multiplier": math.nan}, "noise_multiplier"),
        ({"noise_multiplier": True}, "noise_multiplier"),
        ({"accountant": "moments"}, "accountant"),
    ],
)
def test_bad_numbers_are_named(change: dict[str, object], named: str) -> None:
    arguments = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 10, "delta": 1e-5} | change
    with pytest.raises(InvalidInput, match=f"{named} is .*expected"):
        privacy.epsilon(**arguments)


def test_the_library_stays_silent(capfd: pytest.CaptureFixture[str]) -> None:
    from dpilot.privacy import rdp

    rdp._poisson_gaussian.cache_clear()
    accountant.epsilon(steps(0.9, 0.3, 10), 1e-5, "rdp")
    accountant.epsilon(steps(0.001, 0.2, 3), 1e-5, "rdp")
    assert capfd.readouterr() == ("", "")


HIDDEN = [
    PoissonSampled(1.0, Repeated(ApproxDP(5.0, 1e-7), 10)),
    PoissonSampled(1.0, Composed([ApproxDP(50.0, 1e-6)])),
    PoissonSampled(1.0, PoissonSampled(0.5, ApproxDP(50.0, 1e-6))),
    PoissonSampled(0.5, PoissonSampled(1.0, ApproxDP(50.0, 1e-6))),
]


@pytest.mark.parametrize("event", HIDDEN)
def test_no_pair_hides_in_a_sample_of_everything(event: PoissonSampled) -> None:
    assert accountant.epsilon(event, 1e-5, "rdp") > 45
    assert accountant.epsilon(event, 1e-5, "pld") > 45
    with pytest.raises(InvalidInput, match="no Renyi curve"):
        accountant.rdp(event)


def gaussian_epsilon(sigma: float, steps: int, delta: float) -> float:
    return accountant.gdp_epsilon(math.sqrt(steps) / sigma, delta)


@pytest.mark.parametrize(
    ("sigma", "steps", "delta"),
    [
        (200.0, 100_000, 1e-9),
        (200.0, 100_000, 1e-11),
        (200.0, 100_000, 3e-15),
        (118.6, 100_000, 1e-10),
        (792.2, 1_000_000, 1e-9),
    ],
)
def test_rounding_in_transforms_never_hides_a_cost(sigma: float, steps: int, delta: float) -> None:
    """Almost everybody is sampled, so the closed form of the full batch is the truth to nine digits."""
    event = Repeated(PoissonSampled(1 - 2e-9, Gaussian(sigma)), steps)
    assert accountant.epsilon(event, delta) >= gaussian_epsilon(sigma, steps, delta) * (1 - 1e-7)


@pytest.mark.parametrize("delta", [1e-12, 1e-13, 1e-14])
def test_rounding_hides_no_cost_of_pure_releases(delta: float) -> None:
    epsilon, times = 0.01, 1000
    found = accountant.epsilon(Repeated(PureDP(epsilon), times), delta)
    heads = np.arange(times + 1)
    losses = epsilon * (2 * heads - times)
    chances = binom.pmf(heads, times, 1 / (1 + math.exp(-epsilon)))
    true = float(np.sum(np.where(losses > found, chances * -np.expm1(found - losses), 0.0)))
    assert true <= delta * (1 + 1e-6)


def test_an_almost_full_sample_costs_no_less_than_the_full_batch() -> None:
    nearly, full = PoissonSampled(1 - 1e-15, Gaussian(2.0)), Gaussian(2.0)
    assert accountant.epsilon(Repeated(nearly, 3), 1e-5) == pytest.approx(accountant.epsilon(Repeated(full, 3), 1e-5))


def test_the_second_closed_form_is_right() -> None:
    """The truth used above, once more from the normal law itself."""
    mu, epsilon = 1.5, 2.0
    delta = norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)
    assert accountant.gdp_epsilon(mu, delta) == pytest.approx(epsilon, rel=1e-7)
