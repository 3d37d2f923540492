"""Privacy amplification by Poisson sampling: sampled events as one of the forms whose cost is known."""

from __future__ import annotations

import math

from dpilot.errors import InvalidInput
from dpilot.privacy.events import ApproxDP, Event, ExponentialMechanism, Gaussian, PoissonSampled, PureDP, leaves


def joint_noise_multiplier(event: Event) -> float | None:
    """One Gaussian that equals ``event`` when all its parts are unsampled Gaussians on the same records, else None.

    sigma = (sum sigma_i^-2)^-1/2: releases of the same subsample are one Gaussian, and are sampled as one.
    """
    precision = 0.0
    for part, times in leaves(event):
        if not isinstance(part, Gaussian):
            return None
        precision += times / part.noise_multiplier**2
    return precision**-0.5 if precision > 0 else None


def amplify(event: PoissonSampled) -> Event:
    """``event`` as one of the forms with a known cost: a sampled Gaussian, PureDP or ApproxDP, or its inner event."""
    inner = event.event
    if event.rate > 1 - 1e-9:  # all records instead: never cheaper
        return amplify(inner) if isinstance(inner, PoissonSampled) else inner
    sigma = joint_noise_multiplier(inner)
    if sigma is not None:
        return PoissonSampled(event.rate, Gaussian(sigma))
    match inner:
        case PoissonSampled(rate, deeper):
            return amplify(PoissonSampled(math.nextafter(event.rate * rate, 1.0), deeper))
        case PureDP(epsilon) | ExponentialMechanism(epsilon):
            return PureDP(_sample_epsilon(event.rate, epsilon))
        case ApproxDP(epsilon, delta):
            return ApproxDP(_sample_epsilon(event.rate, epsilon), event.rate * delta)
    raise InvalidInput(
        f"PoissonSampled of {type(inner).__name__} has no known cost here: expected Gaussians, PureDP or ApproxDP. "
        "Sample each part, or price the inner event as ApproxDP."
    )


def _sample_epsilon(rate: float, epsilon: float) -> float:
    """epsilon of an (epsilon, delta)-DP release on a Poisson sample (Balle, Barthe, Gaboardi 2018, Theorem 8)."""
    return math.log1p(rate * math.expm1(epsilon))
