"""What events cost. Three ways to count, each an upper bound; which one may be used is part of the answer.

| name | valid for | note |
|---|---|---|
| pld | schedules fixed in advance | tight; exact closed form where all is full-batch Gaussian |
| rdp | also adaptively chosen events at one order; compositions with private selection | 5 to 25 % looser |
| gdp | full-batch Gaussians only | exact; refused for sampled events: the central-limit form under-reports |
"""

from __future__ import annotations

import math
from typing import Any, Final

from dpilot import _validate
from dpilot._arrays import Floats
from dpilot.errors import InvalidInput
from dpilot.privacy import pld, selection
from dpilot.privacy import rdp as renyi
from dpilot.privacy.amplification import joint_noise_multiplier
from dpilot.privacy.events import Event, PoissonSampled, PureDP, RepeatAndSelect, leaves
from dpilot.privacy.gaussian import gdp_delta, gdp_epsilon
from dpilot.privacy.rdp import ORDERS
from dpilot.privacy.selection import selection_curve

ACCOUNTANTS: Final = ("pld", "rdp", "gdp")

__all__ = [
    "ACCOUNTANTS",
    "ORDERS",
    "delta",
    "epsilon",
    "gdp_delta",
    "gdp_epsilon",
    "gdp_mu",
    "rdp",
    "rdp_epsilon",
]


def epsilon(event: Event, delta: float, accountant: str = "pld") -> float:
    """The epsilon of ``event`` at ``delta``: never below the true one.

    >>> from dpilot.privacy.events import Gaussian
    >>> round(epsilon(Gaussian(3.7306), 1e-5), 3)
    1.0
    """
    delta = _validate.open_unit(delta=delta)
    _validate.one_of(ACCOUNTANTS, accountant=accountant)
    if accountant == "gdp":
        return gdp_epsilon(gdp_mu(event), delta)
    if isinstance(event, RepeatAndSelect):
        return selection.epsilon(event, delta)
    if accountant == "rdp":
        return renyi.event_epsilon(event, delta, selection_curve)
    if next(leaves(event), None) is None:
        return 0.0
    sigma = joint_noise_multiplier(event)
    return gdp_epsilon(1 / sigma, delta) if sigma is not None else pld.epsilon(event, delta)


def delta(event: Event, epsilon: float, accountant: str = "pld") -> float:
    """The delta of ``event`` at ``epsilon``: never below the true one."""
    epsilon = _validate.number(epsilon=epsilon)
    _validate.one_of(ACCOUNTANTS, accountant=accountant)
    if accountant == "gdp":
        return gdp_delta(gdp_mu(event), epsilon)
    if isinstance(event, RepeatAndSelect):
        return selection.delta(event, epsilon)
    if accountant == "rdp":
        spent, used = renyi.approximate(event)
        curve = renyi.curve(event, selection=selection_curve)
        return min(1.0, used + renyi.delta(ORDERS, curve, epsilon - spent))
    return pld.delta(event, epsilon)


def rdp(event: Event, orders: Any = ORDERS) -> Floats:
    """The Renyi curve of ``event`` at ``orders``. ApproxDP parts have none and are refused here."""
    if renyi.approximate(event)[1]:
        raise InvalidInput("ApproxDP has no Renyi curve: expected events with curves. Add its epsilon and delta apart.")
    return renyi.curve(event, tuple(float(order) for order in orders), selection_curve)


def rdp_epsilon(orders: Any, values: Any, delta: float) -> float:
    """epsilon at ``delta`` of a Renyi curve, by the modern conversion."""
    return renyi.epsilon(tuple(float(order) for order in orders), values, delta)


def gdp_mu(event: Event) -> float:
    """mu of an event whose parts are all full-batch Gaussians (mu^2 adds) or PureDP.

    A pure epsilon-DP release is not epsilon/2-GDP: it enters as mu = 2 Phi^-1(e^epsilon / (1 + e^epsilon)).
    """
    square = 0.0
    for part, times in leaves(event):
        square += times * _mu(part) ** 2
    return math.sqrt(square)


def _mu(part: Event) -> float:
    sigma = joint_noise_multiplier(part)
    if sigma is not None:
        return 1 / sigma
    if isinstance(part, PureDP):
        from scipy.special import log_expit, ndtri_exp

        return 2 * float(ndtri_exp(log_expit(part.epsilon)))
    name = "PoissonSampled" if isinstance(part, PoissonSampled) else type(part).__name__
    raise InvalidInput(
        f'accountant "gdp" is refused for {name}: expected full-batch Gaussians, for which it is exact. '
        'Use accountant="pld": the central-limit form of GDP under-reports sampled steps.'
    )
