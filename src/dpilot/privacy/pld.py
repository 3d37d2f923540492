"""Privacy loss distributions of events, through dp-accounting; valid for schedules fixed in advance.

Discretisation is pessimistic: the true delta is never above the one reported.
Neighbours differ by one record, added or removed; both directions are kept and the worse one counts.

Reference: Doroshenko et al., "Connect the Dots", PETS 2022; Zhu, Dong, Wang, AISTATS 2022 (dominating pairs).
"""

from __future__ import annotations

import math
from functools import lru_cache, reduce
from itertools import product
from typing import Any

from dpilot.errors import InvalidInput
from dpilot.privacy import rdp, sampled_gaussian
from dpilot.privacy.amplification import amplify, joint_noise_multiplier
from dpilot.privacy.events import (
    ApproxDP,
    Composed,
    Event,
    ExponentialMechanism,
    Gaussian,
    OneOf,
    PoissonSampled,
    PureDP,
    RepeatAndSelect,
    Repeated,
    leaves,
)
from dpilot.privacy.gaussian import gdp_delta

INTERVAL = 1e-4
_MOST_CHOICES = 64
_MOST_POINTS = 100_000


def choices(event: Event) -> list[Event]:
    """``event`` with every OneOf resolved, in all ways: its profile is the pointwise maximum of theirs."""
    parts = list(leaves(event))
    options: list[list[tuple[Event, int]]] = []
    for part, times in parts:
        if isinstance(part, OneOf):
            if times > 1:
                raise InvalidInput('Repeated(OneOf(...)) has no PLD here: expected one choice. Use accountant="rdp".')
            options.append([(choice, 1) for inner in part.events for choice in choices(inner)])
        else:
            options.append([(part, times)])
    if math.prod(len(option) for option in options) > _MOST_CHOICES:
        raise InvalidInput(f'more than {_MOST_CHOICES} ways to resolve OneOf: expected fewer. Use accountant="rdp".')
    return [_compose(combination) for combination in product(*options)]


@lru_cache(maxsize=8)
def distribution(event: Event) -> Any:
    """The pessimistic privacy loss distribution of an event without OneOf (dp-accounting's object)."""
    return _distribution(event, _interval(_merge(event)))


def _distribution(event: Event, width: float) -> Any:
    parts = _merge(event)
    pieces = [_piece(part, times, width) for part, times in parts]
    return reduce(lambda total, piece: total.compose(piece), pieces)


def delta(event: Event, epsilon: float) -> float:
    """An upper bound of delta at ``epsilon``; closed form where all parts are full-batch Gaussians."""
    return max(_delta(choice, epsilon) for choice in choices(event))


def epsilon(event: Event, delta: float, interval: float | None = None) -> float:
    """An upper bound of epsilon at ``delta``; the grid is refined where the usual one would over-report by 0.5 %."""
    return max(_epsilon(choice, delta, interval) for choice in choices(event))


def width_for_bias(share: float, epsilon: float, steps: int) -> float:
    """The grid width that over-reports ``epsilon`` by about ``share`` of it.

    A width h adds a variance of about h^2/7 a step; epsilon is about the mean loss plus 4.3 standard deviations,
    so it grows by steps h^2/7 (1/2 + 9/epsilon). A guide for the width only: no guarantee rests on it.
    """
    return math.sqrt(7 * share * epsilon / (steps * (0.5 + 9 / epsilon)))


def standard_interval(epsilon: float, steps: int, share: float) -> float:
    """1e-4, which other tools use too, or the first of 1e-5, 1e-6, 1e-7 that over-reports by less than ``share``."""
    width = INTERVAL
    while width > 1e-7 and width > width_for_bias(share, epsilon, steps):
        width /= 10
    return width


def _epsilon(event: Event, delta: float, interval: float | None) -> float:
    steps = sum(times for _, times in _merge(event))
    left = delta - rounding(steps)
    if left < 0.75 * delta:  # too few digits are left: the Renyi curve needs no transform
        return rdp.event_epsilon(event, delta)
    if interval is not None:
        return float(_distribution(event, interval).get_epsilon_for_delta(left))
    value = float(distribution(event).get_epsilon_for_delta(left))
    if value <= 0:
        return 0.0
    finer = standard_interval(value, steps, 5e-3)
    return value if finer >= INTERVAL else float(_distribution(event, finer).get_epsilon_for_delta(left))


def rounding(steps: int) -> float:
    """By how much rounding in the Fourier transforms may move a delta: they are raised to the power ``steps``.

    Seen: up to 0.3 steps 2^-53, in either direction, which the library does not count; 16 times that unit is allowed.
    """
    # An asked delta is lowered by this, a reported one raised. Without it a cost of the order of 2^-53 steps would be
    # hidden: tests/privacy/test_accountant.py::test_rounding_in_transforms_never_hides_a_cost.
    return 16 * 2.0**-53 * steps


def _delta(event: Event, epsilon: float) -> float:
    if next(leaves(event), None) is None:
        return gdp_delta(0.0, epsilon)
    sigma = joint_noise_multiplier(event)
    if sigma is not None:
        return gdp_delta(1 / sigma, epsilon)
    steps = sum(times for _, times in _merge(event))
    return min(1.0, float(distribution(event).get_delta_for_epsilon(epsilon)) + rounding(steps))


def _merge(event: Event) -> list[tuple[Event, int]]:
    """The parts with equal ones counted together and all full-batch Gaussians as one."""
    counts: dict[Event, int] = {}
    precision = 0.0
    for part, times in leaves(event):
        known = amplify(part) if isinstance(part, PoissonSampled) else part
        for leaf, more in leaves(known, times):
            if isinstance(leaf, RepeatAndSelect):
                raise InvalidInput(
                    'RepeatAndSelect inside a composition has no PLD here: expected it alone. Use accountant="rdp".'
                )
            if isinstance(leaf, Gaussian):
                precision += more / leaf.noise_multiplier**2
            else:
                counts[leaf] = counts.get(leaf, 0) + more
    gaussian: list[tuple[Event, int]] = [(Gaussian(precision**-0.5), 1)] if precision > 0 else []
    return gaussian + list(counts.items())


def _interval(parts: list[tuple[Event, int]]) -> float:
    """The usual fine grid, or a coarser one (still pessimistic) where losses are so large that memory would run out."""
    reach = sum(times * _reach(part) for part, times in parts)
    if reach <= _MOST_POINTS * INTERVAL * 100:
        return INTERVAL
    total = rdp.epsilon(rdp.ORDERS, rdp.curve(Composed(Repeated(part, times) for part, times in parts)), 1e-12)
    return max(INTERVAL, min(total, reach) / _MOST_POINTS)


def _reach(part: Event) -> float:
    """About the largest loss that one part can show."""
    match part:
        case Gaussian(sigma) | PoissonSampled(_, Gaussian(sigma)):
            return 1 / (2 * sigma**2) + 10 / sigma
        case PureDP(epsilon) | ExponentialMechanism(epsilon) | ApproxDP(epsilon, _):
            return epsilon
    return 0.0


def _piece(part: Event, times: int, interval: float) -> Any:
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as library

    match part:
        case Gaussian(sigma):
            return sampled_gaussian.distribution(sigma, 1.0, interval, times)
        case PoissonSampled(rate, Gaussian(sigma)):
            return sampled_gaussian.distribution(sigma, rate, interval, times)
        case PureDP(epsilon) | ExponentialMechanism(epsilon):
            piece = library.from_privacy_parameters(common.DifferentialPrivacyParameters(epsilon, 0.0), interval)
        case ApproxDP(epsilon, delta):
            piece = library.from_privacy_parameters(common.DifferentialPrivacyParameters(epsilon, delta), interval)
        case _:
            raise InvalidInput(f"{type(part).__name__} has no PLD here.")
    return piece.self_compose(times) if times > 1 else piece


def _compose(parts: tuple[tuple[Event, int], ...]) -> Event:
    events = [part if times == 1 else Repeated(part, times) for part, times in parts]
    return events[0] if len(events) == 1 else Composed(events)
