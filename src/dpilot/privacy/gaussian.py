"""Exact Gaussian differential privacy: closed forms for full-batch Gaussian releases.

A Gaussian release with noise multiplier s is (1/s)-GDP, releases add in mu^2, and mu-GDP is (epsilon, delta)-DP with::

    delta = Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2)

This is exact for unsubsampled Gaussians only; the central-limit form for sampled ones under-reports and is not here.

Reference: Dong, Roth, Su, "Gaussian Differential Privacy", 2022, Corollary 2.13; Balle and Wang, ICML 2018, Theorem 8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache

from dpilot import _validate
from dpilot.privacy.budget import Budget

_SAFE = 1e-9  # results are moved by this to the safe side, more than the 1e-12 to which roots are found


def gdp_delta(mu: float, epsilon: float) -> float:
    """The smallest delta of a mu-GDP mechanism at ``epsilon``, exact to rounding.

    >>> round(gdp_delta(1.0, 1.0), 6)
    0.126937
    """
    from scipy.special import log_ndtr

    mu = _validate.non_negative(mu=mu)
    if mu == 0:
        return 0.0 if epsilon >= 0 else -math.expm1(epsilon)
    first = float(log_ndtr(-epsilon / mu + mu / 2))
    second = epsilon + float(log_ndtr(-epsilon / mu - mu / 2))
    if second >= first:  # only rounding can do this: the difference is a probability
        return 0.0
    return math.exp(first) * -math.expm1(second - first)


def gdp_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon of a mu-GDP mechanism at ``delta``, rounded up by less than one part in 10^8.

    >>> round(gdp_epsilon(0.268051, 1e-5), 4)
    1.0
    """
    mu = _validate.non_negative(mu=mu)
    delta = _validate.open_unit(delta=delta)
    if gdp_delta(mu, 0.0) <= delta:
        return 0.0
    high = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))  # the zCDP bound
    root = _root(lambda epsilon: gdp_delta(mu, epsilon) - delta, 0.0, high + _SAFE)
    return root * (1 + _SAFE)


@lru_cache(maxsize=256)
def gdp_mu(budget: Budget) -> float:
    """The largest mu whose mu-GDP fits ``budget``, rounded down by less than one part in 10^8.

    >>> round(gdp_mu(Budget(1.0, 1e-5)), 5)
    0.26805
    """
    high = 1.0
    while gdp_delta(high, budget.epsilon) < budget.delta:
        high *= 2
    root = _root(lambda mu: gdp_delta(mu, budget.epsilon) - budget.delta, 0.0, high)
    return root * (1 - 3 * _SAFE)  # further than gdp_epsilon rounds up, so that the two agree


def stages_mu(stages: Iterable[float]) -> float:
    """mu of all stages together, trials and final run: the square root of the sum of squares.

    >>> stages_mu([3.0, 4.0])
    5.0
    """
    return math.hypot(*(_validate.non_negative(mu=mu) for mu in stages))


def leftover_mu(total: float, trials: Iterable[float]) -> float:
    """The largest mu left for the final run when ``trials`` have taken theirs out of ``total``.

    Guarantee:
        stages_mu([*trials, leftover_mu(total, trials)]) <= total, in floats too.

    Example:
        >>> round(leftover_mu(5.0, [3.0]), 12)
        4.0
    """
    total = _validate.positive(total=total)
    taken = tuple(trials)
    spent = stages_mu(taken)
    if spent >= total:
        _validate.refuse("trials", spent, f"a total mu below {total}", "Run fewer trials, or cheaper ones.")
    # total^2 - spent^2 as a product loses no digits where the two are close; the loop takes back what rounding adds.
    # tests/privacy/test_stages.py::test_what_is_left_never_overshoots_the_total.
    left = math.sqrt((total - spent) * (total + spent))
    while stages_mu([*taken, left]) > total:
        left = math.nextafter(left, 0.0)
    return left


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    from scipy.optimize import brentq

    return float(brentq(function, low, high, xtol=1e-300, rtol=1e-12, maxiter=500))
