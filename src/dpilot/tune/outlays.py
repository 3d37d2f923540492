"""Noise multipliers of trials and of the run that is kept, together within one budget; from declared numbers alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dpilot import _validate
from dpilot.errors import InvalidInput
from dpilot.privacy.budget import Budget
from dpilot.privacy.calibrate import noise_multiplier, scale_for
from dpilot.privacy.events import Composed, Event, Repeated
from dpilot.privacy.gaussian import gdp_epsilon, gdp_mu
from dpilot.privacy.stages import leftover_mu
from dpilot.tune.task import Outlay

__all__ = ["equal_outlay", "scaled", "staged_outlays", "whole_outlay"]


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
    return scaled(whole, budget, lambda outlay: Repeated(outlay.event, count), most=4 * count)


def staged_outlays(
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
    each = [Budget(gdp_epsilon(mu, budget.delta), budget.delta) for mu in mus]
    outlays = tuple(whole_outlay(part, sample_rate, steps) for part in each)
    whole = whole_outlay(budget, sample_rate, steps)
    spent = [Repeated(outlay.event, trials) for outlay in outlays]
    return outlays, scaled(whole, budget, lambda final: Composed([*spent, final.event])) if spent else whole


def scaled(whole: Outlay, budget: Budget, event: Callable[[Outlay], Event], *, most: float = 8.0) -> Outlay:
    """``whole`` with its noise raised by as little as makes ``event`` of it fit ``budget``."""

    def raised(factor: float) -> Outlay:
        return Outlay(whole.noise_multiplier * factor, whole.sample_rate, whole.steps)

    return raised(scale_for(lambda factor: event(raised(factor)), budget, low=1.0, high=most))
