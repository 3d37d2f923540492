"""Small parts that a run as a whole would forgive: scales, widths, slots."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from dpilot import clipping
from dpilot.clipping.contract import settle

PUBLIC: dict[str, Any] = {"noise_multiplier": 1.5, "expected_batch_size": 200, "dimension": 1000}


def test_noise_variance_is_that_of_what_the_door_adds() -> None:
    rule = clipping.MeanSquaredError(threshold=3.0, share=0.2)
    state = rule.init(**PUBLIC)
    added = (1.5 * float(state.bound)) ** 2 * 1000 / 200**2
    assert float(rule.noise_variance(state.threshold, state)) == pytest.approx(added, rel=1e-12)


def test_bars_within_two_standard_deviations_of_zero_are_not_heard() -> None:
    rule = clipping.HistogramE()
    state = rule.init(**PUBLIC)
    deviation = 1.5 * float(state.bound) / float(rule.scale(state)) / 200
    assert rule.noise(state) == pytest.approx(deviation, rel=1e-12)
    fractions = deviation * torch.tensor([-5.0, 1.9, 2.1], dtype=torch.float64)
    assert rule.above_noise(state, fractions).tolist() == [0.0, 0.0, float(fractions[2])]


@pytest.mark.parametrize("norm", [0.02, 50.0, 3000.0])
@pytest.mark.parametrize("name", ["histogram-p", "histogram-e", "mse"])
def test_bins_follow_the_norms(name: str, norm: float) -> None:
    state = settle(clipping.get(name), norm, steps=80, public={**PUBLIC, "dimension": 1})
    assert state.memory is not None
    assert 20 * float(state.memory) > norm  # inside the bins
    assert 5 * float(state.memory) < 2 * norm  # and not lost in the first of them
    assert float(state.threshold) == pytest.approx(norm, rel=0.15)


def test_layers_hear_their_slack_through_the_noise_of_all() -> None:
    rule = clipping.get("slack", groups=4)
    extras = rule.clip(torch.ones(2, 4), rule.init(**PUBLIC))[1]
    assert extras.shape == (2, 4 * clipping.slots_for(1.5 * 2, 200))
    assert clipping.slots_for(1.5 * 2, 200) < clipping.slots_for(1.5, 200)


@pytest.mark.parametrize("name", clipping.names())
def test_normalized_form_follows_the_same_thresholds(name: str) -> None:
    plain, other = clipping.get(name, threshold=4.0), clipping.get(name, threshold=4.0, normalized=True)
    one, two = plain.init(**PUBLIC), other.init(**PUBLIC)
    norms = torch.linspace(0.0, 20.0, 200, dtype=torch.float64)
    for _ in range(10):
        (weights, extras), (thin, thin_extras) = plain.clip(norms, one), other.clip(norms, two)
        scale = float(one.threshold)
        assert torch.allclose(thin * scale, weights, rtol=2e-6)
        assert torch.allclose(thin_extras * scale, extras, rtol=2e-6)
        assert float(two.bound) * scale == pytest.approx(float(one.bound), rel=1e-12)
        one, two = plain.update(one, extras.sum(0)), other.update(two, thin_extras.sum(0))
        assert float(two.threshold) == pytest.approx(float(one.threshold), rel=1e-5)


@pytest.mark.parametrize("target", [0.2, 0.5, 0.7])
def test_a_group_bit_uses_all_of_its_share_and_no_more(target: float) -> None:
    rule = clipping.Group(thresholds=(1.0, 2.0), rate=0.2, target=target, share=0.1)
    state = rule.init(**PUBLIC)
    extras = rule.clip(torch.tensor([0.0, 9.0], dtype=torch.float64), state, torch.tensor([0, 1]))[1]
    assert float(extras.abs().max()) == pytest.approx(float(state.bound) * math.sqrt(0.1), rel=1e-6)
