"""Everything that decides the privacy of a fit, fixed from declared numbers before a record is read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from dpilot.data import bounds
from dpilot.metrics.counts import counts_event
from dpilot.metrics.regression import sums_event
from dpilot.metrics.residuals import both_events
from dpilot.privacy import accountant
from dpilot.privacy.batch_rule import batch_rule
from dpilot.privacy.budget import Budget
from dpilot.privacy.calibrate import noise_multiplier, scale_for
from dpilot.privacy.events import Composed, Event, Gaussian, PoissonSampled, Repeated
from dpilot.privacy.gaussian import gdp_mu
from dpilot.privacy.ledger import Stage
from dpilot.statistics import count_event
from dpilot.tables.declaration import PARTS, FitDeclaration

__all__ = [
    "BOUNDS",
    "LEAST_STEPS",
    "METRICS",
    "SIZE",
    "TRAINING",
    "TablePlan",
    "batch_candidates",
    "plan_fit",
    "purchase_events",
    "purchase_noises",
    "purchase_shares",
]

SIZE: Final = "size"
BOUNDS: Final = "bounds"
TRAINING: Final = "training"
METRICS: Final = "held-out metrics"
LEAST_STEPS: Final = 100
_SLACK: Final = 2e-3  # of epsilon that may be left unused beside something bought
_UNSIZED_RATE: Final = 1 / 40  # of a run whose size is not known when it is planned


@dataclass(frozen=True, slots=True)
class TablePlan:
    """Rate, steps and all noise of a fit, and why; ``size_noise`` and ``bounds_noise`` where something is bought.

    Guarantee:
        On each part, what is bought by all and what is spent on the part cost no more than the budget together: the
        noise was calibrated for that sum. Disjoint parts compose in parallel, so both may use all of it.
    """

    sample_rate: float
    steps: int
    training_noise: float
    metrics_noise: float
    size_noise: float | None
    bounds_noise: float | None
    reasons: tuple[str, ...]

    def stages(self, declared: FitDeclaration, split: str) -> list[Stage]:
        """One commitment: what is bought first, then training and metrics, each on its own part."""
        task = declared.task
        metrics = both_events if task.groups else sums_event if task.numeric else counts_event
        bought = purchase_events(declared, {SIZE: self.size_noise, BOUNDS: self.bounds_noise})
        return [
            *(Stage(name, event) for name, event in bought.items()),
            Stage(TRAINING, _training(self.sample_rate, self.steps, self.training_noise), PARTS[0], split),
            Stage(METRICS, metrics(self.metrics_noise), PARTS[1], split),
        ]


def plan_fit(declared: FitDeclaration) -> TablePlan:
    """Batch rule for rate and steps, shares for what is bought, and the noise that the budget then asks for."""
    mu, shares, noises = gdp_mu(declared.budget), purchase_shares(declared), purchase_noises(declared)
    bought = purchase_events(declared, noises)
    rate, steps, reason = _rate_and_steps(declared)
    return TablePlan(
        sample_rate=rate,
        steps=steps,
        training_noise=_noise(declared.budget, rate, steps, tuple(bought.values())),
        # 1e-9 more, so that the sum of what is bought and measured stays below the budget in floats
        metrics_noise=(1 + 1e-9) / (mu * math.sqrt(1 - sum(shares.values()))),
        size_noise=noises[SIZE],
        bounds_noise=noises[BOUNDS],
        reasons=(reason, *(f"{share:.1%} of mu^2 buys the {name}" for name, share in shares.items() if share)),
    )


def purchase_shares(declared: FitDeclaration) -> dict[str, float]:
    """Of the squared mu, for what is not declared; 0 for what is."""
    return {
        SIZE: 0.005 if declared.size is None else 0.0,
        BOUNDS: bounds.SHARE if declared.schema.to_buy else 0.0,
    }


def purchase_noises(declared: FitDeclaration) -> dict[str, float | None]:
    """The noise multiplier of each purchase, or None: one of multiplier s costs 1 / s^2 of the squared mu."""
    mu = gdp_mu(declared.budget)
    return {name: 1 / (mu * math.sqrt(share)) if share else None for name, share in purchase_shares(declared).items()}


def purchase_events(declared: FitDeclaration, noises: dict[str, float | None]) -> dict[str, Event]:
    """What the purchases cost all records, in the order they are made."""
    size, limits = noises[SIZE], noises[BOUNDS]
    events = {} if size is None else {SIZE: count_event(size)}
    return events if limits is None else {**events, BOUNDS: bounds.buy_event(declared.schema, limits)}


def _rate_and_steps(declared: FitDeclaration) -> tuple[float, int, str]:
    if declared.size is None:
        steps = max(1, round(declared.epochs / _UNSIZED_RATE))
        return _UNSIZED_RATE, steps, f"rate 1/{round(1 / _UNSIZED_RATE)}: fixed, as the size is not known beforehand"
    size = max(1, round(declared.size * (1 - declared.held_out)))
    advice = batch_rule(
        declared.budget,
        size=size,
        epochs=declared.epochs,
        candidates=batch_candidates(size, declared.epochs),
        min_steps=LEAST_STEPS,
    )
    return advice.batch_size / size, advice.steps, advice.reason


def batch_candidates(size: int, epochs: float, most_steps: int = 2_000) -> list[int]:
    """Powers of two between the most and the least steps, and the size itself if none fits."""
    least = epochs * size / most_steps
    powers = [2**k for k in range(size.bit_length()) if least <= 2**k < size]
    return [power for power in powers if epochs * size / power >= LEAST_STEPS] or powers[:1] or [size]


@lru_cache(maxsize=64)
def _noise(budget: Budget, rate: float, steps: int, bought: tuple[Event, ...]) -> float:
    """The noise of training beside what is ``bought``: composed as the ledger will compose it.

    Epsilon falls about as 1 / noise, so each round scales the noise by how far epsilon is off. What is returned was
    found to cost no more than the budget.
    """
    sigma = noise_multiplier(budget, sample_rate=rate, steps=steps)
    for _ in range(8 if bought else 0):
        whole = Composed([*bought, _training(rate, steps, sigma)])
        ratio = accountant.epsilon(whole, budget.delta) / budget.epsilon
        if 1 - _SLACK <= ratio <= 1:
            return sigma
        sigma *= ratio * (1 + _SLACK / 2)
    if not bought:
        return sigma
    return scale_for(
        lambda each: Composed([*bought, _training(rate, steps, each)]), budget, low=sigma / 2, high=4 * sigma
    )


def _training(rate: float, steps: int, sigma: float) -> Event:
    step = Gaussian(sigma)
    return Repeated(step if rate == 1 else PoissonSampled(rate, step), steps)
