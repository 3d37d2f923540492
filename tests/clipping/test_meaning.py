"""What the rules mean: with noise, they find what their papers say they find."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from dpilot import clipping
from dpilot.clipping import State
from tests.clipping.contract import release


def lognormal(n: int, generator: torch.Generator, scale: float = 3.0, spread: float = 0.6) -> Tensor:
    return scale * torch.exp(spread * torch.randn(n, generator=generator, dtype=torch.float64))


def follow(rule: Any, steps: int, public: dict[str, Any], seed: int = 0) -> list[State]:
    """The states of a noisy run on Poisson batches of a fixed distribution of norms."""
    generator = torch.Generator().manual_seed(seed)
    reached = [rule.init(**public)]
    for _ in range(steps):
        size = int(torch.poisson(torch.tensor(float(public["expected_batch_size"])), generator=generator))
        _, extras = rule.clip(lognormal(size, generator), reached[-1])
        reached.append(rule.update(reached[-1], release(extras, reached[-1], generator, public["noise_multiplier"])))
    return reached


def settled(states: list[State], last: int = 100) -> float:
    """The geometric mean of the last thresholds."""
    return math.exp(sum(math.log(float(state.threshold)) for state in states[-last:]) / last)


@pytest.mark.parametrize("first", [0.1, 30.0])
@pytest.mark.parametrize(("target", "tau"), [(0.5, 1.0), (0.2, 1.0), (0.5, 2.5)])
def test_quantile_converges_to_the_target_quantile(first: float, target: float, tau: float) -> None:
    rule = clipping.Quantile(threshold=first, target=target, tau=tau)
    public = {"noise_multiplier": 1.0, "expected_batch_size": 512, "dimension": 10}
    threshold = settled(follow(rule, 250, public))
    norms = lognormal(200_000, torch.Generator().manual_seed(9))
    assert float((norms > tau * threshold).double().mean()) == pytest.approx(target, abs=0.02)


def test_slack_q_converges_to_its_quantile_averaged_over_the_first_slot() -> None:
    rule = clipping.get("slack-q", threshold=0.5)
    public = {"noise_multiplier": 1.0, "expected_batch_size": 512, "dimension": 10}
    threshold = settled(follow(rule, 250, public))
    norms = lognormal(200_000, torch.Generator().manual_seed(9))
    below = [float((norms <= threshold * (1 - part / 21)).double().mean()) for part in (0.0, 0.5, 1.0)]
    assert below[2] - 0.02 < 0.5 < below[0] + 0.02
    assert below[1] == pytest.approx(0.5, abs=0.02)


def test_slack_profile_estimates_the_cdf_without_bias_and_with_the_stated_noise() -> None:
    sigma, size, slots, threshold = 1.5, 300, 8, 4.0
    rule = clipping.Slack(threshold=threshold, slots=slots)
    state = rule.init(noise_multiplier=sigma, expected_batch_size=size, dimension=10)
    generator = torch.Generator().manual_seed(1)
    norms = lognormal(size, generator)
    total = rule.clip(norms, state)[1].double().sum(0)
    runs = 4000
    noise = sigma * float(state.bound) * torch.randn(runs, slots, generator=generator, dtype=torch.float64)
    profiles = torch.stack([rule.profile(state, total + row) for row in noise])
    ends = threshold * (1 - torch.arange(slots + 1, dtype=torch.float64) / slots)
    grid = torch.linspace(0, 1, 4001, dtype=torch.float64)
    exact = torch.stack(
        [
            (norms.sort().values.unsqueeze(0) <= (low + (high - low) * grid).unsqueeze(1)).double().mean()
            for high, low in pairwise(ends)
        ]
    )
    deviation = sigma * math.sqrt(slots) / size
    assert float((profiles.mean(0) - exact).abs().max()) < 5 * deviation / math.sqrt(runs)
    assert profiles.std(0).tolist() == pytest.approx([deviation] * slots, rel=0.06)


def least_error(norms: Tensor, public: dict[str, Any], share: float, aligned: bool) -> float:
    """The true minimiser, from the norms themselves, on a fine grid."""
    noise = public["noise_multiplier"] ** 2 * public["dimension"] / ((1 - share) * public["expected_batch_size"] ** 2)
    grid = torch.logspace(-3, 2, 2001, dtype=torch.float64)
    excess = [(norms - c).clamp_min(0.0) for c in grid]
    bias = torch.stack([e.mean().square() if aligned else e.square().mean() for e in excess])
    return float(grid[torch.argmin(noise * grid.square() + bias)])


@pytest.mark.parametrize("first", [0.1, 10.0])
@pytest.mark.parametrize("dimension", [100_000, 3_000_000])
@pytest.mark.parametrize(("name", "aligned"), [("histogram-e", False), ("mse", True)])
def test_least_error_rules_land_near_the_true_minimiser(name: str, aligned: bool, dimension: int, first: float) -> None:
    public = {"noise_multiplier": 1.0, "expected_batch_size": 1000, "dimension": dimension}
    rule = clipping.get(name, threshold=first)
    norms = lognormal(4000, torch.Generator().manual_seed(9))
    best = least_error(norms, public, rule.share, aligned)
    assert settled(follow(rule, 120, public), last=50) == pytest.approx(best, rel=0.15)


def test_histogram_p_lands_at_its_percentile() -> None:
    public = {"noise_multiplier": 1.0, "expected_batch_size": 1000, "dimension": 10}
    threshold = settled(follow(clipping.get("histogram-p", percentile=0.3), 120, public), last=50)
    norms = lognormal(200_000, torch.Generator().manual_seed(9))
    assert float((norms <= threshold).double().mean()) == pytest.approx(0.3, abs=0.03)


@pytest.mark.parametrize("target", [0.5, 0.1])
def test_one_shot_lands_at_its_quantile(target: float) -> None:
    public = {"noise_multiplier": 1.0, "expected_batch_size": 1000, "dimension": 10}
    states = follow(clipping.OneShot(target=target, measure=3), 4, public)
    norms = lognormal(200_000, torch.Generator().manual_seed(9))
    assert float((norms > states[-1].threshold).double().mean()) == pytest.approx(target, abs=0.03)


def test_more_noise_lowers_the_threshold_of_least_error() -> None:
    public = {"expected_batch_size": 1000, "dimension": 1_000_000}
    quiet, loud = (
        settled(follow(clipping.get("mse"), 80, {**public, "noise_multiplier": sigma}), last=30) for sigma in (0.5, 4.0)
    )
    assert loud < 0.5 * quiet
