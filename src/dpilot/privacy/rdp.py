"""Renyi curves of events: additive, filterable, and what private selection composes with.

The conversion is the modern one (Canonne, Kamath, Steinke 2020, Proposition 12); the sampled Gaussian's curve is
dp-accounting's, add or remove one record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np

from dpilot import _validate
from dpilot._arrays import Floats
from dpilot.errors import InvalidInput
from dpilot.privacy.amplification import amplify
from dpilot.privacy.events import (
    ApproxDP,
    Event,
    ExponentialMechanism,
    Gaussian,
    OneOf,
    PoissonSampled,
    PureDP,
    RepeatAndSelect,
    leaves,
)

ORDERS: tuple[float, ...] = (
    *(1 + x / 10 for x in range(1, 100)),
    *map(float, range(11, 64)),
    *(float(round(64 * 2 ** (k / 4))) for k in range(25)),
)


SelectionCurve = Callable[[RepeatAndSelect, tuple[float, ...]], Floats]


def curve(event: Event, orders: tuple[float, ...] = ORDERS, selection: SelectionCurve | None = None) -> Floats:
    """An upper bound of the Renyi divergence of ``event`` at each order, both directions.

    ``selection`` gives the curve of a RepeatAndSelect, whose bound needs more than Renyi curves; without it one is
    refused.

    Guarantee:
        curves of a composition add, also when later events are chosen from earlier outputs at one fixed order.
    """
    total = np.zeros(len(orders))
    for part, times in leaves(event):
        total += times * _piece(part, orders, selection)
    return total


def approximate(event: Event) -> tuple[float, float]:
    """The sums (epsilon, delta) of the event's ApproxDP parts, which have no Renyi curve."""
    epsilon = delta = 0.0
    for part, times in leaves(event):
        if isinstance(part, PoissonSampled):
            part = amplify(part)
        if isinstance(part, ApproxDP):
            epsilon += times * part.epsilon
            delta += times * part.delta
    return epsilon, delta


def epsilon(orders: tuple[float, ...], values: Floats, delta: float) -> float:
    """epsilon at ``delta`` from a Renyi curve: the least of r + ln(1 - 1/a) - ln(a delta)/(a - 1) over orders a."""
    delta = _validate.open_unit(delta=delta)
    a = np.asarray(orders)
    r = np.maximum(np.asarray(values), 0.0)
    by_order = r + np.log1p(-1 / a) - np.log(delta * a) / (a - 1)
    by_order = np.where(np.isnan(by_order), np.inf, by_order)
    return max(0.0, float(by_order.min()))


def event_epsilon(event: Event, target: float, selection: SelectionCurve | None = None) -> float:
    """epsilon of ``event`` at delta ``target``: the curve converted, the sums of its ApproxDP parts added."""
    spent, used = approximate(event)
    return math.inf if used >= target else spent + epsilon(ORDERS, curve(event, selection=selection), target - used)


def delta(orders: tuple[float, ...], values: Floats, epsilon: float) -> float:
    """delta at ``epsilon`` from a Renyi curve: exp((a-1)(r - epsilon)) (1 - 1/a)^(a-1) / a, least over orders a."""
    a = np.asarray(orders)
    r = np.maximum(np.asarray(values), 0.0)
    log_delta = (a - 1) * (r - epsilon + np.log1p(-1 / a)) - np.log(a)
    log_delta = np.where(np.isnan(log_delta), 0.0, log_delta)
    return math.exp(min(0.0, float(log_delta.min())))


def _piece(part: Event, orders: tuple[float, ...], selection: SelectionCurve | None) -> Floats:
    a = np.asarray(orders)
    match part:
        case Gaussian(sigma):
            return np.asarray(a / (2 * sigma**2))
        case PoissonSampled():
            inner = amplify(part)
            if isinstance(inner, PoissonSampled) and isinstance(inner.event, Gaussian):
                return _poisson_gaussian(inner.rate, inner.event.noise_multiplier, orders)
            return curve(inner, orders, selection)
        case PureDP(epsilon):
            return _pure(a, epsilon)
        case ExponentialMechanism(epsilon):
            return np.minimum(_pure(a, epsilon), a * epsilon**2 / 8)
        case ApproxDP():
            return np.zeros(len(orders))
        case OneOf(events):
            if any(approximate(event)[1] for event in events):
                raise InvalidInput("ApproxDP inside OneOf has no Renyi curve: expected events with curves.")
            return np.asarray(np.max([curve(event, orders, selection) for event in events], axis=0))
        case RepeatAndSelect() if selection is not None:
            return selection(part, orders)
        case _:
            raise InvalidInput(f"{type(part).__name__} has no Renyi curve here.")


@lru_cache(maxsize=256)
def _poisson_gaussian(rate: float, sigma: float, orders: tuple[float, ...]) -> Floats:
    with quiet():
        from dp_accounting import dp_event
        from dp_accounting.rdp import RdpAccountant

        accountant = RdpAccountant(list(orders))
        accountant.compose(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(sigma)))
    return np.asarray(accountant.rdp)


def _pure(a: Floats, epsilon: float) -> Floats:
    """The tight Renyi curve of pure DP, randomised response's: Mironov 2017, Proposition 5, in logarithms."""
    log_p = -math.log1p(math.exp(-epsilon))  # probability of the likelier answer
    log_q = -epsilon + log_p
    first = a * log_p + (1 - a) * log_q
    second = a * log_q + (1 - a) * log_p
    return np.minimum(np.logaddexp(first, second) / (a - 1), epsilon)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence absl below errors: dp-accounting's lines about orders that do not converge are normal."""
    from absl import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)
