"""Group-specific clipping keeps the same contract, with the record's own group beside its norm."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from dpilot import clipping
from dpilot.clipping import contract
from dpilot.errors import InvalidInput

PUBLIC: dict[str, Any] = {"noise_multiplier": 1.0, "expected_batch_size": 512, "dimension": 10}
RULES = [
    clipping.Group(thresholds=(1.0, 4.0, 0.25)),
    clipping.Group(thresholds=(1.0, 4.0, 0.25), rate=0.2, target=0.3, tau=1.5, floor=0.1, ceiling=50.0),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", RULES)
def test_joint_norm_never_exceeds_bound(rule: clipping.Group, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    state = rule.init(**PUBLIC)
    for step in range(500):
        family = list(contract.FAMILIES)[step // 46]
        norms = contract.draw(family, contract.SIZES[step % 3], state, generator, dtype)
        groups = torch.randint(0, 3, norms.shape, generator=generator)
        _, extras = contract.check_step(_bound_to(rule, groups), norms, state)
        state = rule.update(state, contract.release(extras, state, generator))
        assert state.memory is not None
        thresholds = state.memory[:3]
        assert float(state.threshold) == float(thresholds.max())
        assert (thresholds >= rule.floor).all()
        assert (thresholds <= rule.ceiling).all()


def test_bound_of_the_smallest_group_would_be_noticed() -> None:
    rule = RULES[0]
    state = rule.init(**PUBLIC)
    wrong = replace(state, bound=state.bound.new_tensor(0.25))
    with pytest.raises(AssertionError):
        contract.check_step(_bound_to(rule, torch.tensor([0, 1])), torch.tensor([3.0, 3.0]), wrong)


def test_each_record_is_clipped_by_its_own_group_alone() -> None:
    rule = RULES[1]
    state = rule.init(**PUBLIC)
    norms, groups = torch.rand(60) * 5, torch.arange(60) % 3
    together = rule.clip(norms, state, groups)
    alone = [rule.clip(norms[i : i + 1], state, groups[i : i + 1]) for i in range(60)]
    assert torch.equal(together[0], torch.cat([weights for weights, _ in alone]))
    assert torch.equal(together[1], torch.cat([extras for _, extras in alone]))


@pytest.mark.parametrize("norm", [0.0, 1e-37, 1.0, 1e30])
def test_a_group_that_was_not_declared_makes_the_null_record(norm: float) -> None:
    rule = RULES[1]
    weights, extras = rule.clip(torch.full((3,), norm), rule.init(**PUBLIC), torch.tensor([-1, 3, 0]))
    assert weights.tolist()[:2] == [0.0, 0.0]
    assert weights[2] > 0
    assert (extras[:2] == 0).all()


def test_groups_find_their_own_quantiles_whatever_their_size() -> None:
    rule = clipping.Group(thresholds=(1.0, 1.0), proportions=(0.9, 0.1), rate=0.2, target=0.5)
    generator = torch.Generator().manual_seed(1)
    state = rule.init(**PUBLIC)
    levels = []
    for step in range(300):
        groups = (torch.rand(512, generator=generator) < 0.1).long()
        norms = (1 + 9 * groups) * torch.exp(0.5 * torch.randn(512, generator=generator))
        _, extras = rule.clip(norms, state, groups)
        state = rule.update(state, contract.release(extras, state, generator))
        if step >= 200 and state.memory is not None:
            levels.append(state.memory[:2].log())
    small, large = torch.stack(levels).mean(0).exp().tolist()
    assert small == pytest.approx(1.0, rel=0.15)
    assert large == pytest.approx(10.0, rel=0.15)


def test_group_rule_round_trips_through_json() -> None:
    for rule in RULES:
        assert clipping.from_dict(json.loads(json.dumps(clipping.to_dict(rule), allow_nan=False))) == rule


def test_no_step_waits_for_the_device() -> None:
    meta = torch.device("meta")
    for rule in RULES:
        state = rule.init(**PUBLIC).to(meta)
        _, extras = rule.clip(torch.empty(8, device=meta), state, torch.empty(8, dtype=torch.long, device=meta))
        assert rule.update(state, extras.sum(0)).threshold.device == meta


def test_declared_numbers_are_checked() -> None:
    with pytest.raises(InvalidInput, match="proportions"):
        clipping.Group(thresholds=(1.0, 2.0), proportions=(1.0,))
    with pytest.raises(InvalidInput, match="threshold is inf"):
        clipping.Group(thresholds=(1.0, math.inf))


def _bound_to(rule: clipping.Group, groups: torch.Tensor) -> Any:
    class Bound:
        @staticmethod
        def clip(norms: torch.Tensor, state: clipping.State) -> tuple[torch.Tensor, torch.Tensor]:
            return rule.clip(norms, state, groups)

    return Bound
