"""Calibration: never above the budget, never far below it, never a huge grid."""

from __future__ import annotations

import math
import resource

import numpy as np
import pytest

from dpilot import Budget, privacy
from dpilot.errors import InvalidInput
from dpilot.privacy import calibrate, pld
from dpilot.privacy.events import Composed, Gaussian, PoissonSampled, Repeated
from tests.thin import thin


def fine_epsilon(sigma: float, q: float, steps: int, delta: float) -> float:
    return pld.epsilon(Repeated(PoissonSampled(q, Gaussian(sigma)), steps), delta, 1e-4)


REFERENCE = [(512 / 60_000, 3540, 3.0), (512 / 50_000, 8820, 8.0), (0.2, 400, 1.0), (0.01, 1000, 1.0)]


@pytest.mark.parametrize(("q", "steps", "epsilon"), REFERENCE)
def test_epsilon_lies_just_below_the_target(q: float, steps: int, epsilon: float) -> None:
    sigma = privacy.noise_multiplier(Budget(epsilon, 1e-5), sample_rate=q, steps=steps)
    assert 0.999 * epsilon <= fine_epsilon(sigma, q, steps, 1e-5) <= epsilon


def random_cases(count: int) -> list[tuple[float, int, float, float]]:
    draw = np.random.default_rng(3)
    return [
        (
            float(10 ** draw.uniform(-3, -0.05)),
            int(10 ** draw.uniform(0, 3.7)),
            float(10 ** draw.uniform(-1.3, 1.2)),
            float(10 ** draw.uniform(-8, -4)),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize(("q", "steps", "epsilon", "delta"), thin(random_cases(16), 4))
def test_never_overshoots(q: float, steps: int, epsilon: float, delta: float) -> None:
    sigma = privacy.noise_multiplier(Budget(epsilon, delta), sample_rate=q, steps=steps)
    reported = privacy.epsilon(noise_multiplier=sigma, sample_rate=q, steps=steps, delta=delta)
    assert 0.985 * epsilon <= reported <= epsilon


def test_tiny_epsilon_needs_little_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sigma = privacy.noise_multiplier(Budget(0.01, 1e-5), sample_rate=0.01, steps=1000)
    assert 0.985 * 0.01 <= privacy.epsilon(noise_multiplier=sigma, sample_rate=0.01, steps=1000, delta=1e-5) <= 0.01
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 * 1024


def test_answers_are_remembered() -> None:
    budget = Budget(1.25, 1e-5)
    first = privacy.noise_multiplier(budget, sample_rate=0.05, steps=50)
    hits = calibrate._calibrate.cache_info().hits
    assert privacy.noise_multiplier(budget, sample_rate=0.05, steps=50) == first
    assert calibrate._calibrate.cache_info().hits == hits + 1


def test_full_batch_is_closed_form() -> None:
    budget = Budget(2.0, 1e-6)
    assert privacy.noise_multiplier(budget, sample_rate=1, steps=100) == 10 / privacy.gdp_mu(budget)


def test_any_event_can_be_calibrated() -> None:
    """Two stages that share one scale."""

    def make(scale: float) -> Composed:
        return Composed([Repeated(PoissonSampled(0.1, Gaussian(scale)), 50), Gaussian(3 * scale)])

    budget = Budget(1.0, 1e-5)
    scale = privacy.scale_for(make, budget, low=0.5, high=50.0)
    assert 0.999 <= pld.epsilon(make(scale), budget.delta) <= 1.0
    with pytest.raises(InvalidInput, match="Raise high"):
        privacy.scale_for(make, budget, low=0.5, high=0.6)


def test_what_is_certified_was_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last value seen before the answer is the answer's own, and fits."""
    seen: list[tuple[float, float]] = []
    real = pld.epsilon

    def spy(event: Repeated, delta: float, interval: float | None = None) -> float:
        value = real(event, delta, interval)
        seen.append((event.event.event.noise_multiplier, value))  # type: ignore[union-attr]
        return value

    monkeypatch.setattr(pld, "epsilon", spy)
    sigma = calibrate.noise_multiplier(Budget(2.5, 1e-6), sample_rate=0.03, steps=321)
    assert seen[-1][0] == sigma
    assert seen[-1][1] <= 2.5


@pytest.mark.parametrize(
    ("q", "steps", "named"),
    [(0, 10, "sample_rate"), (1.01, 10, "sample_rate"), (math.nan, 10, "sample_rate"), (0.1, 0, "steps")],
)
def test_bad_numbers_are_named(q: float, steps: int, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        privacy.noise_multiplier(Budget(1.0, 1e-5), sample_rate=q, steps=steps)


@pytest.mark.parametrize(("q", "steps", "epsilon"), thin([(1e-7, 1, 0.5), (1e-9, 10, 5.0), (0.01, 10, 1e4)], 3))
def test_hardly_any_cost_ends_at_the_least_noise(q: float, steps: int, epsilon: float) -> None:
    sigma = privacy.noise_multiplier(Budget(epsilon, 1e-5), sample_rate=q, steps=steps)
    assert sigma == pytest.approx(0.2)
    assert privacy.epsilon(noise_multiplier=sigma, sample_rate=q, steps=steps, delta=1e-5) <= epsilon
