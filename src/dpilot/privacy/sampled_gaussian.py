"""The privacy loss distribution of one Poisson-sampled Gaussian release, its deltas computed as one array.

dp-accounting's ``from_gaussian_mechanism`` inverts the privacy loss point by point in Python, which is most of the
time of a calibration. Here the same grid, the same cumulative distributions and the same connect-the-dots rounding
are used, and only the inversion is a formula on arrays.

Reference: Doroshenko et al., "Connect the Dots", PETS 2022.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dpilot._arrays import Floats

_NO_OVERFLOW = 500.0  # exp of it is finite, and 1 beside it is nothing
_ALWAYS_DENSE = 10  # 2 ** 10 points are more than the sparse form of dp-accounting may have


def distribution(noise_multiplier: float, sample_rate: float, interval: float, times: int = 1) -> Any:
    """The pessimistic privacy loss distribution, of both directions, on a grid of width ``interval``.

    Args:
        noise_multiplier: of one release.
        sample_rate: its sampling rate.
        interval: the width of the grid.
        times: how many such releases are composed.

    Example:
        >>> round(distribution(1.0, 0.01, interval=1e-4, times=100).get_epsilon_for_delta(1e-5), 3)
        0.718
    """
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as library
    from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

    def direction(adjacency: AdjacencyType) -> Any:
        release = GaussianPrivacyLoss(noise_multiplier, sampling_prob=sample_rate, adjacency_type=adjacency)
        bounds = release.connect_dots_bounds()
        lower, upper = math.floor(bounds.epsilon_lower / interval), math.ceil(bounds.epsilon_upper / interval)
        epsilons = np.arange(lower, upper + 1) * interval
        deltas = _deltas(release, epsilons, adding=adjacency == AdjacencyType.ADD)
        one = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, lower, upper, deltas)
        # To choose between its forms the library computes size ** times, which takes seconds where times is a million;
        # from 10 times on the answer is always the dense form.
        form = one if times < _ALWAYS_DENSE else one.to_dense_pmf()
        return form if times == 1 else form.self_compose(times)

    removed = direction(AdjacencyType.REMOVE)
    if sample_rate == 1.0:
        return library.PrivacyLossDistribution(removed)
    return library.PrivacyLossDistribution(removed, direction(AdjacencyType.ADD))


def _deltas(release: Any, epsilons: Floats, adding: bool) -> Floats:
    """P(x <= c) - e^epsilon Q(x <= c), at the point c where the privacy loss is epsilon.

    c is where this difference is largest: its derivative there is 0, so that an error in c lowers delta by its square
    only. Where the loss never reaches epsilon (adding), delta is 0; where it is always above (removing), 1 - e^epsilon:
    c is then infinite and the same formula gives both.
    """
    q, variance = release.sampling_prob, release.standard_deviation**2
    # Removing: P = (1 - q) N(0, s^2) + q N(-1, s^2) and Q = N(0, s^2), so e^loss = 1 + q (e^u - 1) with u the loss
    # without sampling: u = log(1 + (e^loss - 1) / q) at x = -1/2 - u s^2. Adding is the mirror image.
    # tests/privacy/test_sampled_gaussian.py::test_the_deltas_of_dp_accounting.
    sign = -1.0 if adding else 1.0
    unsampled = sign * (_log_ratio(sign * epsilons, q) if q < 1 else sign * epsilons)
    cut = (0.5 if adding else -0.5) - unsampled * variance
    deltas: Floats = release.mu_upper_cdf(cut) - np.exp(epsilons + release.mu_lower_log_cdf(cut))
    return deltas.clip(0.0, 1.0)


def _log_ratio(losses: Floats, q: float) -> Floats:
    """log(1 + (e^loss - 1) / q), minus infinity where that is not positive."""
    small = np.minimum(losses, _NO_OVERFLOW)
    with np.errstate(divide="ignore"):
        inside = np.log1p(np.maximum(np.expm1(small) / q, -1.0))
    return np.where(losses > _NO_OVERFLOW, losses - math.log(q), inside)
