"""From a budget to a noise multiplier, never below what the budget needs.

A pessimistic grid of width h over-reports epsilon by about c h^2, so cheap coarse evaluations say where the answer
is and how wide the final grid may be; one or two evaluations on that grid then certify it::

    (1 - SLACK) target <= epsilon_h(sigma) <= target,   with h so small that it over-reports by FINE_BIAS only

Guarantee:
    the returned multiplier's epsilon, pessimistically discretised, was computed and does not exceed the target.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from dpilot import _validate
from dpilot.errors import InternalError, InvalidInput
from dpilot.privacy import accountant, pld
from dpilot.privacy.budget import Budget
from dpilot.privacy.events import Event, Gaussian, PoissonSampled, Repeated
from dpilot.privacy.gaussian import gdp_mu

SLACK = 4e-4  # of epsilon that may be left unused, beside the grid's part
_FINE_BIAS = 5e-4
_MOST_ROUNDS = 40
_LEAST = math.log(0.2)  # of sampled steps: with less noise losses are so large that grids grow without bound


def noise_multiplier(budget: Budget, *, sample_rate: float, steps: int) -> float:
    """The noise multiplier with which ``steps`` Poisson-sampled Gaussian steps cost no more than ``budget``.

    Args:
        budget: the total (epsilon, delta) of all steps.
        sample_rate: the probability with which a step takes a record, in (0, 1]; batch_size / size, declared.
        steps: how many steps there are.

    Guarantee:
        its epsilon never exceeds the budget's, and is within 0.1 % of it.

    Edge cases:
        sample_rate = 1   closed form, exact Gaussian DP: sqrt(steps) / mu
        tiny epsilon      the search starts near the answer, so no huge grid is ever built
        tiny rate         a multiplier below 0.2 is never returned for sampled steps, though the budget might admit it

    Example:
        >>> round(noise_multiplier(Budget(1.0, 1e-5), sample_rate=0.01, steps=1000), 2)
        1.42
    """
    rate = _validate.rate("It is batch_size / size, declared.", sample_rate=sample_rate)
    count = _validate.count(steps=steps)
    if rate == 1:
        return math.sqrt(count) / gdp_mu(budget)
    return _calibrate(budget, rate, count)


def scale_for(make_event: Callable[[float], Event], budget: Budget, *, low: float, high: float) -> float:
    """The smallest parameter in [low, high] whose event fits ``budget``; epsilon must fall as it grows.

    For schedules with several stages that share one scale. Slower than noise_multiplier: plain bisection on the fine
    grid.

    Args:
        make_event: the event of a parameter, such as a noise multiplier that all stages are scaled by.
        budget: what the event may cost.
        low, high: the ends of the bracket.

    Returns:
        The end of the bracket whose cost was computed, within 0.01 % of the smallest.

    Raises:
        InvalidInput: if even ``high`` costs more than the budget.
    """

    def fits(value: float) -> bool:
        return accountant.epsilon(make_event(value), budget.delta) <= budget.epsilon

    if not fits(high):
        raise InvalidInput(
            f"even {high} costs more than {budget}: expected a bracket with an affordable end. Raise high."
        )
    for _ in range(_MOST_ROUNDS):
        if high <= low * (1 + 1e-4):
            break
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


@lru_cache(maxsize=1024)
def _calibrate(budget: Budget, rate: float, steps: int) -> float:
    target = math.log(budget.epsilon)

    def log_epsilon(log_sigma: float, interval: float) -> float:
        event = Repeated(PoissonSampled(rate, Gaussian(math.exp(log_sigma))), steps)
        return math.log(max(pld.epsilon(event, budget.delta, interval), 1e-300))

    coarse = min(pld.width_for_bias(1e-2, budget.epsilon, steps), budget.epsilon / 100, 5e-3)
    start = _seed(budget, rate, steps)
    aim = target + (coarse / pld.width_for_bias(1.0, budget.epsilon, steps)) ** 2
    x, y, slope = _descend(lambda x: log_epsilon(x, coarse), start, -1.2, aim - 0.005, aim + 0.005)
    bias = max(y - log_epsilon(x, coarse / 2), 1e-7) * 4 / 3  # of the coarse grid: it falls with the square of h
    fine = coarse * min(0.5, math.sqrt(_FINE_BIAS / bias))
    fine = max(fine, pld.standard_interval(budget.epsilon, steps, 1e-2))  # kept if it over-reports by less than 1 %
    x = max(_LEAST, x + (target - (y - bias) - _FINE_BIAS - SLACK / 2) / slope)
    return math.exp(_descend(lambda x: log_epsilon(x, fine), x, slope, target - SLACK, target)[0])


def _descend(
    function: Callable[[float], float], x: float, slope: float, low: float, high: float
) -> tuple[float, float, float]:
    """A point where the decreasing ``function`` was seen to lie in [low, high], its value, and the slope there.

    Secant steps, kept inside the bracket that earlier points make.
    """
    left, right = -math.inf, math.inf
    y = function(x)
    for _ in range(_MOST_ROUNDS):
        if low <= y <= high or (x <= _LEAST and y <= high):
            return x, y, slope
        left, right = (x, right) if y > high else (left, x)
        guess = x + max(-1.0, min(1.0, ((low + high) / 2 - y) / slope))
        if not left < guess < right:
            guess = (left + right) / 2
        guess = max(guess, _LEAST)
        value = function(guess)
        if guess != x and (value - y) / (guess - x) < 0:
            slope = (value - y) / (guess - x)
        x, y = guess, value
    raise InternalError("calibration did not settle: please report the budget, rate and steps.")


def _seed(budget: Budget, rate: float, steps: int) -> float:
    """log sigma by the central limit, mu = q sqrt(T (e^{1/sigma^2} - 1)): near the answer, never used as one."""
    return max(_LEAST, -0.5 * math.log(math.log1p((gdp_mu(budget) / rate) ** 2 / steps)))
