"""Attacks on tuners that read features themselves, on thresholds under wider noise, and on scaling that underflows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from mpmath import mp, mpf, ncdf
from sklearn.pipeline import make_pipeline

from dpilot import Budget, audit
from dpilot.audit.observe import RETURNED
from dpilot.data.splits import Split
from dpilot.errors import InvalidInput
from dpilot.hardened import grid_size
from dpilot.linear import LinearRegression, PrivateStandardScaler
from dpilot.linear.declared_bounds import parse_bounds
from dpilot.mechanism import EXACT
from dpilot.privacy.events import ApproxDP, Gaussian
from dpilot.privacy.receipt import Receipt
from dpilot.privacy.unit import PrivacyUnit
from dpilot.statistics import partition
from dpilot.transfer import Features
from dpilot.tune import ProbeTask
from dpilot.tune.rivals.hyfree import hyfree

KEY = bytes(32)


def test_tuning_by_private_losses_refuses_units() -> None:
    """It adds up rows: a unit of 64 rows would move its sums by 64 bounds."""
    values = np.random.default_rng(0).normal(size=(120, 4)).astype(np.float32)
    features = Features.of(values, (values[:, 0] > 0).astype(int), classes=2).unit()
    features = features.by_unit(np.arange(120) // 2, PrivacyUnit("patient", rows=8), key=KEY)
    task = ProbeTask.of(features, Split({"train": 0.8, "held-out": 0.2}, KEY), size=60)
    with pytest.raises(InvalidInput, match="protects patient"):
        hyfree(task, Budget(4.0, 1e-4), steps=4, every=2)


class _Scale:
    """Hardened noise, whose scale is kept instead of drawn."""

    stamp = EXACT.stamp

    def __init__(self) -> None:
        self.found = 0.0

    def gaussian(self, values: Any, *, bound: float, noise_multiplier: float) -> Any:
        numbers = sum(value.size for value in values)
        self.found = noise_multiplier * (bound + grid_size(bound, noise_multiplier) * math.sqrt(numbers))
        return list(values)


@pytest.mark.parametrize(("sigma", "delta"), [(2.0, 1e-6), (100.0, 1e-6), (1000.0, 1e-12)])
def test_a_value_of_one_record_comes_by_hardened_noise_as_rarely_as_was_paid(sigma: float, delta: float) -> None:
    """1.0014, 1.047 and 2.16 times delta."""
    threshold, noise = partition.threshold_for(sigma, delta), _Scale()
    event = partition.partitions_event(sigma, threshold)
    paid: Any = {"noise_multiplier": sigma, "threshold": threshold, "receipt": Receipt(event), "noise": noise}
    partition.partitions(["alone"], **paid)
    gaussian, chance = event.events
    assert gaussian == Gaussian(sigma)
    assert isinstance(chance, ApproxDP)
    with mp.workdps(40):
        true = ncdf((1 - mpf(threshold)) / mpf(noise.found))
        assert true <= mpf(chance.delta) * mpf("1.0001")


def test_no_number_of_a_record_ends_a_pipeline() -> None:
    """5e-324 over a width underflows: the pipeline ends before its second fit."""

    def fit(data: Any) -> Any:
        with np.errstate(all="raise"):
            scaler = PrivateStandardScaler(2.0, 1e-4, size=50, bounds={"X": (-10.0, 10.0)})
            return make_pipeline(scaler, LinearRegression(2.0, 1e-4, size=50)).fit(*data)[-1].coef_

    values = np.random.default_rng(0).normal(size=(50, 2))
    target = values.sum(axis=1)
    more = np.concatenate([values, [[5e-324, 0.0]]]), np.append(target, 0.0)
    result = audit.replay(fit, (values, target), more)
    assert result.ending == RETURNED
    assert not result.differences


def test_bounds_whose_widths_could_underflow_are_refused() -> None:
    """Times a width of 2^-60, which noise alone finds now and then: rows became nan, and so did sums."""
    parse_bounds({"X": (0.0, 1e-249)}, 1)
    with pytest.raises(InvalidInput, match="at least 1e-250 apart"):
        parse_bounds({"X": (0.0, 1e-310)}, 1)
