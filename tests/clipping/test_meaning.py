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
from dpilot.clipping.contract import release


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


def gradients(kind: str, rows: int, generator: torch.Generator) -> Tensor:
    """Per-sample gradients: of random directions, partly aligned, or short ones beside a few long, aligned ones."""
    made = torch.randn(rows, 50, generator=generator, dtype=torch.float64)
    made *= (lognormal(rows, generator) / made.norm(dim=1)).unsqueeze(1)
    if kind == "partly aligned":
        made[:, 0] += 0.5
    if kind == "rare and long":
        made[: rows // 20] = 8.0 * torch.eye(50, dtype=torch.float64)[0]
    return made


def bias_at(rows: Tensor, threshold: float) -> float:
    return float(((1 - threshold / rows.norm(dim=1)).clamp_min(0.0).unsqueeze(1) * rows).mean(0).norm())


@pytest.mark.parametrize("threshold", [0.3, 2.0, 20.0])
@pytest.mark.parametrize("kind", ["random", "partly aligned", "rare and long"])
def test_the_bias_is_never_above_its_bound(kind: str, threshold: float) -> None:
    """Without noise, and for norms in the middles of bins: what is left is the inequality."""
    rule = clipping.get("mse", threshold=threshold, bins=400, width=0.05)
    state = rule.init(noise_multiplier=0.0, expected_batch_size=1000, dimension=50)
    rows = gradients(kind, 1000, torch.Generator().manual_seed(3))
    norms = rows.norm(dim=1)
    rows *= (((norms / 0.05).floor() + 0.5) * 0.05 / norms).unsqueeze(1)
    weights, extras = rule.clip(rows.norm(dim=1), state)
    length = (weights.double().unsqueeze(1) * rows).sum(0).norm()
    _, fractions = rule.receive(state, extras.sum(0))
    clipped = rule._clipped_length(state, length)
    tried = torch.logspace(-1.5, 1.2, 25, dtype=torch.float64)
    excess = (rule.middles(state) - tried.unsqueeze(-1)).clamp_min(0.0)
    bound, aligned = (rule._bias(state, fractions, excess, each) for each in (clipped, None))
    true = torch.tensor([bias_at(rows, float(each)) for each in tried])
    assert (true <= bound + 1e-5).all()
    assert (bound <= aligned + 1e-9).all()
    if kind == "random":
        assert float(bound[5]) < 0.8 * float(aligned[5])


def test_an_estimated_bias_is_too_low_where_few_long_gradients_point_one_way() -> None:
    """As documented: what is kept points anywhere, what is clipped off does not."""
    rows = gradients("rare and long", 1000, torch.Generator().manual_seed(3))
    norms = rows.norm(dim=1)
    found = {}
    for bias in ("bounded", "estimated"):
        rule = clipping.get("mse", threshold=0.3, bins=400, width=0.05, bias=bias)
        state = rule.init(noise_multiplier=0.0, expected_batch_size=1000, dimension=50)
        weights, extras = rule.clip(norms, state)
        clipped = rule._clipped_length(state, (weights.double().unsqueeze(1) * rows).sum(0).norm())
        _, fractions = rule.receive(state, extras.sum(0))
        found[bias] = float(rule._bias(state, fractions, (rule.middles(state) - 3.0).clamp_min(0.0)[None], clipped))
    assert found["estimated"] < 0.5 * bias_at(rows, 3.0) < 0.51 * found["bounded"]


@pytest.mark.parametrize("form", [False, True], ids=["plain", "normalized"])
@pytest.mark.parametrize("bias", ["bounded", "estimated"])
def test_the_released_length_lowers_the_threshold_of_least_error(bias: str, form: bool) -> None:
    """Towards the true optimum of gradients that point anywhere; the normalized form goes the same way."""
    public = {"noise_multiplier": 1.0, "expected_batch_size": 500, "dimension": 50_000}
    rows = gradients("partly aligned", 500, torch.Generator().manual_seed(4))
    grid = torch.logspace(-3, 1, 400, dtype=torch.float64)
    noise = 50_000 / 500**2
    best = float(grid[torch.argmin(torch.tensor([noise * float(c) ** 2 + bias_at(rows, float(c)) ** 2 for c in grid]))])
    ends = []
    for told in (True, False):
        rule = clipping.get("mse", bias=bias, normalized=form)
        state, generator = rule.init(**public), torch.Generator().manual_seed(5)
        for _ in range(80):
            weights, extras = rule.clip(rows.norm(dim=1), state)
            deviation = float(state.bound)
            total = torch.cat([(weights.double().unsqueeze(1) * rows).sum(0), torch.zeros(50_000 - 50)])
            total += deviation * torch.randn(50_000, generator=generator)
            noisy = extras.sum(0) + deviation * torch.randn(extras.shape[1], generator=generator)
            length = total.norm()
            state = clipping.update_from_release(rule, state, noisy, length) if told else rule.update(state, noisy)
        ends.append(float(state.threshold))
    assert best < ends[0] < 0.8 * ends[1]
    assert ends[0] < (3 if bias == "estimated" else 6) * best


@pytest.mark.parametrize("length", [math.nan, math.inf, 0.0, 1e30])
def test_an_odd_length_leaves_a_finite_threshold(length: float) -> None:
    rule = clipping.get("mse")
    state = rule.init(noise_multiplier=1.0, expected_batch_size=100, dimension=10)
    extras = rule.clip(lognormal(100, torch.Generator().manual_seed(1)), state)[1].sum(0)
    state = clipping.update_from_release(rule, state, extras, torch.tensor(length))
    assert 0 < float(state.threshold) < 100
