"""Numbers the papers and their code print, held exactly."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from dpilot import clipping

PUBLIC: dict[str, Any] = {"noise_multiplier": 1.0, "expected_batch_size": 4, "dimension": 10}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_slack_slots_of_four_norms(dtype: torch.dtype) -> None:
    rule = clipping.Slack(threshold=2.0, slots=4)
    weights, extras = rule.clip(torch.tensor([0.5, 0.5, 1.0, 1.0], dtype=dtype), rule.init(**PUBLIC))
    assert extras.sum(0).tolist() == [4.0, 4.0, 2.0, 0.0]
    assert weights.tolist() == [1.0] * 4


def test_slack_slots_equal_the_loop_of_the_paper() -> None:
    rule = clipping.Slack(threshold=1.7, slots=9)
    norms = torch.linspace(0.01, 2.5, 200, dtype=torch.float64)
    extras = rule.clip(norms, rule.init(**PUBLIC))[1]
    for norm, row in zip(norms.tolist(), extras.tolist(), strict=True):
        left, slot = 3 * max(1.7 - norm, 0.0), 1.7 / 3
        expected = []
        for _ in range(9):
            expected.append(min(slot, left))
            left -= expected[-1]
        assert row == pytest.approx(expected, abs=1e-6)


def test_slack_update_hat() -> None:
    rule = clipping.Slack(threshold=2.0, slots=2, rate=0.5)
    state = rule.init(**PUBLIC)
    released = torch.tensor([0.2, 0.4], dtype=torch.float64) * (2 / math.sqrt(2)) * 4
    assert rule.profile(state, released).tolist() == pytest.approx([0.2, 0.4])
    assert float(rule.update(state, released).threshold) == pytest.approx(2 * math.exp(0.2), rel=1e-12)
    assert round(float(rule.update(state, released).threshold), 6) == 2.442806


def test_slack_update_tilde_and_quantile() -> None:
    released = torch.tensor([0.2, 0.4], dtype=torch.float64) * (2 / math.sqrt(2)) * 4
    for variant, gamma in (("tilde", 1 - (1 - 0.4 / math.sqrt(2)) / 2), ("quantile", 0.5)):
        rule = clipping.Slack(threshold=2.0, slots=2, rate=0.5, variant=variant)
        moved = float(rule.update(rule.init(**PUBLIC), released).threshold)
        assert moved == pytest.approx(2 * math.exp(0.5 * (gamma - 0.2)), rel=1e-12)


def test_slack_target_is_clipped_to_a_fraction() -> None:
    rule = clipping.Slack(threshold=0.5, slots=2, rate=0.5)  # z = 0.9 / 0.5, gamma = 1.4 before it is clipped
    released = torch.tensor([0.9, 0.9], dtype=torch.float64) * (0.5 / math.sqrt(2)) * 4
    moved = float(rule.update(rule.init(**PUBLIC), released).threshold)
    assert moved == pytest.approx(0.5 * math.exp(0.5 * (1 - 0.9)), rel=1e-12)


def test_tilde_is_unchanged_when_the_loss_is_rescaled_and_hat_is_not() -> None:
    def ratio(variant: str, scale: float) -> float:
        rule = clipping.Slack(threshold=scale, slots=4, variant=variant)
        state = rule.init(**PUBLIC)
        extras = rule.clip(scale * torch.tensor([0.0, 0.1, 0.6, 2.0], dtype=torch.float64), state)[1]
        return float(rule.update(state, extras.sum(0)).threshold) / scale

    assert ratio("tilde", 1.0) == pytest.approx(ratio("tilde", 8.0), rel=1e-9)
    assert ratio("hat", 1.0) != pytest.approx(ratio("hat", 8.0), rel=1e-3)


@pytest.mark.parametrize(("size", "slots"), [(128, 8), (256, 13), (512, 21), (1024, 34), (2048, 54), (1, 1)])
def test_number_of_slots(size: int, slots: int) -> None:
    rule = clipping.get("slack")
    state = rule.init(noise_multiplier=1.0, expected_batch_size=size, dimension=10)
    assert clipping.slots_for(1.0, size) == slots
    assert rule.clip(torch.ones(3), state)[1].shape == (3, slots)


@pytest.mark.parametrize(("size", "gradient_noise"), [(512, 1.000191), (100, 1.005038)])
def test_noise_split_of_andrew_theorem_1(size: int, gradient_noise: float) -> None:
    sigma, count_noise = 1.0, size / 20
    rule = clipping.Quantile(threshold=3.0, share=clipping.bit_share(sigma, count_noise))
    state = rule.init(noise_multiplier=sigma, expected_batch_size=size, dimension=10)
    noise = sigma * float(state.bound)  # what the door adds
    published = (sigma**-2 - (2 * count_noise) ** -2) ** -0.5
    assert noise / float(state.threshold) == pytest.approx(published, rel=1e-12)
    assert round(published, 6) == gradient_noise
    apart = rule.clip(torch.tensor([0.0, 9.0], dtype=torch.float64), state)[1]
    bit = float(apart[1] - apart[0])  # one more record above moves the count by one bit
    assert noise / bit == pytest.approx(count_noise, rel=1e-6)


@pytest.mark.parametrize("name", ["histogram-p", "histogram-e", "mse"])
@pytest.mark.parametrize("histogram_noise", [5.0, 6.0])
def test_noise_split_of_a_histogram(name: str, histogram_noise: float) -> None:
    sigma = 1.3
    rule = clipping.get(name, share=clipping.histogram_share(sigma, histogram_noise))
    state = rule.init(noise_multiplier=sigma, expected_batch_size=64, dimension=10)
    noise = sigma * float(state.bound)
    gradient_noise = noise / float(state.threshold)
    bar = float(rule.clip(torch.tensor([0.5], dtype=torch.float64), state)[1].max())
    assert noise / bar == pytest.approx(histogram_noise, rel=1e-6)
    assert (gradient_noise**-2 + histogram_noise**-2) ** -0.5 == pytest.approx(sigma, rel=1e-12)


def test_default_share_is_a_count_noise_of_ten_gradient_noises() -> None:
    gradient_noise = 1 / math.sqrt(1 - clipping.Quantile().share)
    assert clipping.bit_share(1.0, 10 * gradient_noise) == pytest.approx(1 / 401, rel=1e-12)


def test_esipova_moves_by_fraction_minus_a_tenth() -> None:
    rule = clipping.get("esipova")
    state = rule.init(**PUBLIC)
    extras = rule.clip(torch.tensor([2.0, 0.5, 0.5, 0.5], dtype=torch.float64), state)[1]
    assert float(rule.update(state, extras.sum(0)).threshold) == pytest.approx(math.exp(0.25 - 0.1), rel=1e-6)


@pytest.mark.parametrize(("released", "fraction"), [(1e6, 1.0), (-1e6, 0.0)])
def test_noise_beyond_the_batch_moves_a_quantile_as_far_as_all_norms_would(released: float, fraction: float) -> None:
    rule = clipping.Quantile(rate=0.5, target=0.3)
    moved = rule.update(rule.init(**PUBLIC), torch.tensor([released], dtype=torch.float64))
    assert float(moved.threshold) == pytest.approx(math.exp(0.5 * (fraction - 0.3)), rel=1e-12)


def test_bounded_counts_above_tau_times_the_threshold() -> None:
    rule = clipping.get("bounded")
    extras = rule.clip(torch.tensor([2.4, 2.5, 2.6]), rule.init(**PUBLIC))[1][:, 0]
    assert [value > 0 for value in extras.tolist()] == [False, False, True]


def test_psac_and_auto_weights() -> None:
    norms = torch.tensor([0.0, 0.5, 3.0], dtype=torch.float64)
    for rule, expected in (
        (clipping.Psac(threshold=2.0, softening=0.1), [2 / (n + 0.1 / (n + 0.1)) for n in (0.0, 0.5, 3.0)]),
        (clipping.AutoS(threshold=2.0), [2 / (n + 0.01) for n in (0.0, 0.5, 3.0)]),
        (clipping.AutoV(threshold=2.0), [0.0, 4.0, 2 / 3]),
    ):
        assert rule.clip(norms, rule.init(**PUBLIC))[0].tolist() == pytest.approx(expected, rel=1e-6)


def test_one_shot_freezes_for_its_public_steps_and_no_longer() -> None:
    rule = clipping.OneShot()
    state = rule.init(**PUBLIC, steps=300)
    frozen = []
    for _ in range(5):
        frozen.append(state.frozen)
        weights, extras = rule.clip(torch.tensor([3.0] * 4), state)
        assert (float(weights.sum()) == 0) == state.frozen
        assert float(state.bound) == (1.0 if state.frozen else float(state.threshold))
        state = rule.update(state, extras.sum(0))
    assert frozen == [True, True, True, False, False]
    assert 2.5 < float(state.threshold) < 3.5


def test_layer_bounds_add_in_squares() -> None:
    for name in ("constant", "quantile", "slack"):
        rule = clipping.get(name, groups=7, threshold=2.0)
        state = rule.init(**PUBLIC)
        assert state.inner is not None
        assert float(state.inner.bound.square().sum()) == pytest.approx(float(state.bound) ** 2, rel=1e-12)
        assert float(state.threshold) == pytest.approx(2.0, rel=1e-12)


def test_layers_move_on_their_own() -> None:
    rule = clipping.get("quantile", groups=2)
    state = rule.init(**PUBLIC)
    norms = torch.tensor([[0.01, 9.0]] * 4, dtype=torch.float64)
    state = rule.update(state, rule.clip(norms, state)[1].sum(0))
    assert state.inner is not None
    low, high = state.inner.threshold.tolist()
    assert low < math.sqrt(0.5) < high


def test_a_signal_that_is_not_a_number_leaves_the_threshold() -> None:
    for name in ("quantile", "slack", "mse", "histogram-e"):
        rule = clipping.get(name)
        state = rule.init(**PUBLIC)
        width = rule.clip(torch.ones(1), state)[1].shape[1]
        after = rule.update(state, torch.full((width,), math.nan))
        assert replace(after, step=0) == state
