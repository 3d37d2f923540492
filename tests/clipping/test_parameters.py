"""Configuration is refused with value, rule and remedy; stored rules and states load as data only."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from dpilot import clipping
from dpilot.errors import InvalidInput

PUBLIC: dict[str, Any] = {"noise_multiplier": 1.0, "expected_batch_size": 8, "dimension": 3}


@pytest.mark.parametrize("name", clipping.names())
@pytest.mark.parametrize("threshold", [0.0, -1.0, math.inf, math.nan, 1e-20, 1e20, "1"])
def test_threshold_no_run_could_start_from_is_refused(name: str, threshold: Any) -> None:
    with pytest.raises(InvalidInput, match="threshold"):
        clipping.get(name, threshold=threshold)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("auto-s", {"gamma": 0.0}),
        ("quantile", {"share": 0.0}),
        ("quantile", {"share": 1.0}),
        ("quantile", {"target": 1.5}),
        ("quantile", {"tau": -1.0}),
        ("bounded", {"floor": 3.0, "ceiling": 2.0}),
        ("slack", {"variant": "hut"}),
        ("slack", {"slots": 0}),
        ("histogram-e", {"rounds": 0}),
        ("histogram-p", {"percentile": 1.0}),
        ("mse", {"bins": 1}),
        ("one-shot", {"lowest": 2.0, "highest": 1.0}),
        ("psac", {"softening": 0.0}),
        ("constant", {"gamma": 1.0}),
        ("constant", {"groups": 0}),
        ("mse", {"groups": 2}),
        ("no-such-rule", {}),
    ],
)
def test_parameters_are_checked_before_anything_runs(name: str, parameters: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        clipping.get(name, **parameters)


@pytest.mark.parametrize("name", clipping.names())
@pytest.mark.parametrize("bad", [{"noise_multiplier": -1.0}, {"expected_batch_size": 0}, {"dimension": 0}])
def test_public_numbers_are_checked(name: str, bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(bad))):
        clipping.get(name).init(**{**PUBLIC, **bad})


def test_slots_without_noise_have_to_be_given() -> None:
    with pytest.raises(InvalidInput, match="slots"):
        clipping.get("slack").init(**{**PUBLIC, "noise_multiplier": 0.0})
    assert clipping.get("slack", slots=3).init(**{**PUBLIC, "noise_multiplier": 0.0}).dimension == 3


def test_first_threshold_is_kept_inside_the_limits() -> None:
    assert float(clipping.get("bounded", threshold=0.01).init(**PUBLIC).threshold) == 0.1
    assert float(clipping.get("slack", threshold=9.0, ceiling=2.0).init(**PUBLIC).threshold) == 2.0


def test_declared_threshold_is_kept_to_the_last_bit() -> None:
    for value in (0.1, 1 / 3, 1e-7):
        state = clipping.get("constant", threshold=value).init(**PUBLIC)
        assert float(state.threshold) == float(state.bound) == value


@pytest.mark.parametrize("name", clipping.names())
def test_a_release_of_another_shape_is_refused(name: str) -> None:
    rule = clipping.get(name)
    with pytest.raises(InvalidInput, match="shape"):
        rule.update(rule.init(**PUBLIC), torch.zeros(777))


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"name": "os.system"},
        {"name": ["constant"]},
        {"name": "constant", "threshold": "__import__('os')"},
        {"name": "constant", "__class__": "x"},
    ],
)
def test_a_stored_rule_that_is_not_ours_is_refused(data: Any) -> None:
    with pytest.raises(InvalidInput):
        clipping.from_dict(data)


@pytest.mark.parametrize(
    "change",
    [
        {"threshold": 0.0},
        {"threshold": "1"},
        {"bound": math.inf},
        {"bound": -1.0},
        {"step": -1},
        {"measuring": 0.5},
        {"memory": [math.nan]},
        {"inner": {"threshold": 1.0}},
        {"origin": 1},
        {"more": 1},
    ],
)
def test_a_stored_state_that_no_run_could_reach_is_refused(change: dict[str, Any]) -> None:
    data = clipping.get("quantile").init(**PUBLIC).to_dict()
    assert clipping.State.from_dict(json.loads(json.dumps(data))) == clipping.State.from_dict(data)
    with pytest.raises(InvalidInput):
        clipping.State.from_dict({**data, **change})


def test_unknown_parameter_names_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match="ceiling, floor, rate, share, target, tau, threshold"):
        clipping.get("bounded", flor=0.1)


def test_half_precision_norms_are_answered_in_float32() -> None:
    for name in clipping.names():
        rule = clipping.get(name)
        weights, extras = rule.clip(torch.ones(3, dtype=torch.bfloat16), rule.init(**PUBLIC))
        assert weights.dtype == extras.dtype == torch.float32


def test_states_are_equal_only_when_every_number_is() -> None:
    one = clipping.get("quantile").init(**PUBLIC)
    two = clipping.get("quantile", threshold=math.nextafter(1.0, 2.0)).init(**PUBLIC)
    assert one == clipping.get("quantile").init(**PUBLIC)
    assert one != two
    assert one != "a state"


def test_clip_and_update_follow_no_gradient() -> None:
    norms = torch.ones(4, requires_grad=True)
    for name in clipping.names():
        rule = clipping.get(name)
        weights, extras = rule.clip(norms * 2, rule.init(**PUBLIC))
        assert not weights.requires_grad
        assert not extras.requires_grad


def test_answers_do_not_depend_on_the_default_dtype() -> None:
    norms = torch.rand(50, dtype=torch.float64) * 4
    for name in clipping.names():
        rule = clipping.get(name)
        before = rule.clip(norms, rule.init(**PUBLIC))
        torch.set_default_dtype(torch.bfloat16)
        try:
            after = rule.clip(norms, rule.init(**PUBLIC))
            states = [rule.update(rule.init(**PUBLIC), extras.sum(0)) for _, extras in (before, after)]
        finally:
            torch.set_default_dtype(torch.float32)
        assert torch.equal(before[0], after[0])
        assert torch.equal(before[1], after[1])
        assert states[0] == states[1] == rule.update(rule.init(**PUBLIC), before[1].sum(0))


@pytest.mark.parametrize("section", ["Guarantee:", "Edge cases:", "Example:", "Reference:"])
def test_every_rule_says_what_it_guarantees_and_where_it_comes_from(section: str) -> None:
    rules = [value for value in vars(clipping).values() if isinstance(value, type) and hasattr(value, "clip")]
    assert len(rules) >= 13
    missing = [rule.__name__ for rule in rules if rule is not clipping.Clipping and section not in str(rule.__doc__)]
    assert not missing


def test_a_weight_with_too_few_bits_is_nothing() -> None:
    """A subnormal weight has too few bits to bound w n: it is 0, and so is what it lets in."""
    rule = clipping.get("constant", threshold=1e-8)
    state = rule.init(noise_multiplier=1.0, expected_batch_size=8, dimension=4)
    weights, _ = rule.clip(torch.tensor([1e31, 1e-9], dtype=torch.float32), state)
    assert weights.tolist() == [0.0, 1.0]


def test_automatic_clipping_with_a_vanishing_gamma_is_refused() -> None:
    with pytest.raises(InvalidInput, match="gamma"):
        clipping.AutoS(gamma=1e-45)
