"""What events cost at least: the second accountant, by which prices are checked and never set.

An optimistic discretisation of the same privacy losses: its delta is never above the true one. Parts without a known
law (a pure epsilon that a mechanism need not reach, a private selection) count as nothing, which keeps it below.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, Final

from dpilot import _validate
from dpilot.errors import InvalidInput
from dpilot.privacy.events import Event, Gaussian, OneOf, PoissonSampled, leaves
from dpilot.privacy.gaussian import gdp_epsilon

__all__ = ["epsilon"]

_FINEST, _COARSEST, _LOST = 2e-5, 1e-4, 0.05  # grid widths, and about what all steps together may lose to one
_SAFE: Final = 1e-6  # of the result: rounding in the transforms


def epsilon(event: Event, delta: float) -> float:
    """At least so much epsilon is lost to ``event`` at ``delta``.

    >>> round(epsilon(Gaussian(3.7306), 1e-5), 3)
    1.0
    """
    delta = _validate.open_unit(delta=delta)
    parts = list(leaves(event))
    choices = [each for part, _ in parts if isinstance(part, OneOf) for each in part.events]
    if choices:
        return max(epsilon(each, delta) for each in choices)
    precision = sum(times / part.noise_multiplier**2 for part, times in parts if isinstance(part, Gaussian))
    sampled = [
        (part.event.noise_multiplier, part.rate, times)
        for part, times in parts
        if isinstance(part, PoissonSampled) and isinstance(part.event, Gaussian)
    ]
    if not precision and not sampled:
        raise InvalidInput(f"{event!r} has no Gaussian part: expected one, as only its law is known from below.")
    if not sampled:
        return gdp_epsilon(precision**0.5, delta) * (1 - _SAFE)
    width = min(_COARSEST, max(_FINEST, _LOST / sum(times for _, _, times in sampled)))
    pieces = [_losses(sigma, rate, width).self_compose(times) for sigma, rate, times in sampled]
    if precision:
        pieces.append(_losses(precision**-0.5, 1.0, width))
    whole = reduce(lambda total, piece: total.compose(piece), pieces)
    return max(0.0, float(whole.get_epsilon_for_delta(delta))) * (1 - _SAFE)


def _losses(noise_multiplier: float, rate: float, width: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution as library

    return library.from_gaussian_mechanism(
        noise_multiplier,
        sampling_prob=rate,
        value_discretization_interval=width,
        pessimistic_estimate=False,
        use_connect_dots=False,
    )
