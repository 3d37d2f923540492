"""Noise multipliers of trials and of the run that is kept, together within one budget; from declared numbers alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

from dpilot import _validate
from dpilot.errors import InvalidInput
from dpilot.privacy import accountant
from dpilot.privacy.budget import Budget
from dpilot.privacy.calibrate import noise_multiplier
from dpilot.privacy.events import Composed, Event, Repeated
from dpilot.privacy.gaussian import gdp_epsilon, gdp_mu, leftover_mu
from dpilot.tune.task import Outlay

__all__ = ["equal_outlay", "least_factor", "scale_noise", "stage_outlays", "whole_outlay"]


def whole_outlay(budget: Budget, sample_rate: float = 1.0, steps: int | None = None) -> Outlay:
    """One run that takes the whole budget.

    >>> round(whole_outlay(Budget(1.0, 1e-5)).noise_multiplier, 3)
    3.731
    """
    if _validate.rate(sample_rate=sample_rate) == 1:
        return Outlay(1 / gdp_mu(budget))
    if steps is None:
        raise InvalidInput("steps is None with a sample rate below 1: expected the number of steps, fixed.")
    return Outlay(noise_multiplier(budget, sample_rate=sample_rate, steps=steps), sample_rate, steps)


def equal_outlay(budget: Budget, count: int, sample_rate: float = 1.0, steps: int | None = None) -> Outlay:
    """One of ``count`` runs that together take the whole budget."""
    whole, count = whole_outlay(budget, sample_rate, steps), _validate.count(count=count)
    if sample_rate == 1:
        return Outlay(whole.noise_multiplier * math.sqrt(count) * (1 + 1e-12))
    return scale_noise(whole, budget, lambda outlay: Repeated(outlay.event, count))


def stage_outlays(
    budget: Budget,
    mus: Sequence[float],
    trials: int,
    *,
    final_mu: float | None = None,
    sample_rate: float = 1.0,
    steps: int | None = None,
) -> tuple[tuple[Outlay, ...], Outlay]:
    """One trial of each stage, of which there are ``trials``, at the given mu, and the final run with the rest.

    Guarantee:
        Full batch: the squared mu of all runs add up to at most that of the budget. Sampled: a trial has the epsilon
        that its mu stands for at the budget's delta, and the PLD of all stages fits the budget.
    """
    taken = tuple(mus) * trials
    if _validate.rate(sample_rate=sample_rate) == 1:
        last = leftover_mu(gdp_mu(budget), taken)
        if final_mu is not None and _validate.positive(final_mu=final_mu) > last:
            _validate.refuse("final_mu", final_mu, f"at most {last:.6g}, what the trials leave")
        return tuple(Outlay(1 / mu) for mu in mus), Outlay(1 / (last if final_mu is None else final_mu))
    if final_mu is not None:
        raise InvalidInput("final_mu is for full batches: expected None, as the final run takes what is left.")
    return _poisson_outlays(budget, tuple(mus), trials, sample_rate, steps)


@lru_cache
def _poisson_outlays(
    budget: Budget, mus: tuple[float, ...], trials: int, sample_rate: float, steps: int | None
) -> tuple[tuple[Outlay, ...], Outlay]:
    each = [Budget(gdp_epsilon(mu, budget.delta), budget.delta) for mu in mus]
    outlays = tuple(whole_outlay(part, sample_rate, steps) for part in each)
    whole = whole_outlay(budget, sample_rate, steps)
    spent = [Repeated(outlay.event, trials) for outlay in outlays]
    return outlays, scale_noise(whole, budget, lambda final: Composed([*spent, final.event])) if spent else whole


def scale_noise(whole: Outlay, budget: Budget, event: Callable[[Outlay], Event]) -> Outlay:
    """``whole`` with its noise raised by as little as makes ``event`` of it fit ``budget``."""
    sampled = whole.sample_rate < 1
    return whole.scale(least_factor(lambda factor: event(whole.scale(factor)), budget, sampled=sampled))


def least_factor(event: Callable[[float], Event], budget: Budget, *, sampled: bool, most: float = 1e4) -> float:
    """The least factor >= 1 of the noise with which ``event`` fits ``budget``, never below it.

    Rises from 1, as calibration far from the answer is slow; found to 1 part in 1,000 where losses are sampled, as
    each evaluation takes a grid then, and to 1 in 100,000 otherwise.
    """

    def fits(factor: float) -> bool:
        return accountant.epsilon(event(factor), budget.delta) <= budget.epsilon

    low, high = 1.0, 1.05
    while not fits(high):
        low, high = high, 1.5 * high
        if high > most:
            raise InvalidInput(f"no amount of noise up to {most:g} times a run's fits {budget}: expected fewer trials.")
    while high > low * (1 + (1e-3 if sampled else 1e-5)):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
