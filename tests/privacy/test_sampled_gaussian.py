"""The distribution built from arrays is dp-accounting's own."""

from __future__ import annotations

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

from dpilot.privacy import sampled_gaussian
from tests.thin import thin

CASES = [
    (sigma, rate, interval)
    for sigma in (0.02, 0.2, 0.7, 1.0, 5.0, 300.0)
    for rate in (1e-9, 1e-4, 0.01, 0.5, 0.999, 1 - 1e-9, 1.0)
    for interval in (1e-2, 1e-4)
    if sigma > 0.5 or interval == 1e-2
]


@pytest.mark.parametrize(("sigma", "rate", "interval"), thin(CASES, 9))
def test_the_deltas_of_dp_accounting(sigma: float, rate: float, interval: float) -> None:
    ours = sampled_gaussian.distribution(sigma, rate, interval)
    theirs = from_gaussian_mechanism(sigma, sampling_prob=rate, value_discretization_interval=interval)
    epsilons = np.concatenate([-np.geomspace(10, 1e-6, 30), [0.0], np.geomspace(1e-6, 1e3, 60)])
    for epsilon in epsilons:
        expected = theirs.get_delta_for_epsilon(epsilon)
        assert ours.get_delta_for_epsilon(epsilon) == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_the_direction_of_adding_is_not_that_of_removing() -> None:
    one = sampled_gaussian.distribution(1.0, 0.1, 1e-3)
    assert one._pmf_remove.get_delta_for_epsilon(0.5) > 2 * one._pmf_add.get_delta_for_epsilon(0.5)
