"""Every clipping rule, in every form, through the one contract."""

import dataclasses
import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from dpilot import clipping
from dpilot.clipping import contract
from dpilot.errors import InvalidInput
from tests.thin import thin

NORMALIZED: dict[str, Any] = {"normalized": True}
LAYERS: dict[str, Any] = {"groups": 3}
LAYERED = ("constant", "auto-s", "auto-v", "quantile", "bounded", "slack", "slack-q", "psac")


def _named(name: str, **form: Any) -> Any:
    return pytest.param(clipping.get(name, **form), id="-".join([name, *form]))


NAMED = [*(_named(name) for name in clipping.names()), _named("one-shot", measure=40)]
FORMS = [_named(name, **NORMALIZED) for name in clipping.names()]
FORMS += [_named(name, **form) for name in LAYERED for form in (LAYERS, {**LAYERS, **NORMALIZED})]
RULES = NAMED + FORMS
DTYPES = [torch.float32, torch.float64]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Tensors here are small: more threads than cores make them many times slower."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", thin(DTYPES, 2))
@pytest.mark.parametrize("rule", NAMED)
def test_joint_norm_never_exceeds_bound_over_an_adaptive_run(rule: Any, dtype: torch.dtype) -> None:
    assert len(contract.FAMILIES) * 50 >= 500
    contract.check_run(rule, dtype, steps=50)


@pytest.mark.parametrize("dtype", thin(DTYPES, 2))
@pytest.mark.parametrize("rule", FORMS)
def test_joint_norm_never_exceeds_bound_in_other_forms(rule: Any, dtype: torch.dtype) -> None:
    contract.check_run(rule, dtype, steps=20)


@pytest.mark.parametrize("rule", NAMED + thin(FORMS, 3))
def test_joint_norm_never_exceeds_bound_where_float64_does_not_exist(rule: Any) -> None:
    state = rule.init(**contract.PUBLIC)
    generator = torch.Generator().manual_seed(5)
    for step in range(110):
        state = _in_float32(state)
        family = list(contract.FAMILIES)[step % len(contract.FAMILIES)]
        norms = contract.draw(family, 200, state, generator, torch.float32)
        _, extras = contract.check_step(rule, norms, state)
        state = rule.update(state, contract.release(extras, state, generator).float())
        assert state.threshold.dtype == torch.float32


@pytest.mark.parametrize("dtype", thin(DTYPES, 2))
@pytest.mark.parametrize("rule", thin(RULES, 2))
def test_clip_is_row_by_row_and_chunking_changes_nothing(rule: Any, dtype: torch.dtype) -> None:
    contract.check_rows(rule, dtype)


@pytest.mark.parametrize("rule", RULES)
def test_states_depend_on_releases_only(rule: Any) -> None:
    contract.check_public(rule)


@pytest.mark.parametrize("rule", RULES)
def test_state_round_trips_through_json_bit_for_bit(rule: Any) -> None:
    contract.check_json(rule)


@pytest.mark.parametrize("rule", RULES)
def test_the_state_of_any_other_rule_is_refused(rule: Any, stored: list[tuple[Any, dict[str, Any]]]) -> None:
    groups = contract.groups_of(rule.init(**contract.PUBLIC))
    norms, released = torch.ones((2, groups) if groups else 2), torch.zeros(777 * max(groups, 1))
    refused = 0
    for other, data in stored:
        state = clipping.State.from_dict(data)
        if other == rule:
            rule.clip(norms, state)
            continue
        with pytest.raises(InvalidInput, match="clip state was made by"):
            rule.clip(norms, state)
        with pytest.raises(InvalidInput, match="clip state was made by"):
            rule.update(state, released)
        refused += 1
    assert refused == len(stored) - 1


@pytest.fixture(scope="module")
def stored() -> list[tuple[Any, dict[str, Any]]]:
    """Every rule with a state that it reached, as a checkpoint keeps it."""
    rules = [parameter.values[0] for parameter in RULES]
    return [(rule, json.loads(json.dumps(contract.states(rule, steps=1)[-1].to_dict()))) for rule in rules]


@pytest.mark.parametrize("name", clipping.names())
def test_the_state_of_the_same_rule_with_another_parameter_is_refused(name: str) -> None:
    rule: Any = clipping.get(name)
    state = rule.init(**contract.PUBLIC)
    for field in dataclasses.fields(rule):
        value = getattr(rule, field.name)
        if isinstance(value, float) and math.isfinite(value):
            other = dataclasses.replace(rule, **{field.name: value * 0.999 + 1e-9})
            with pytest.raises(InvalidInput, match="expected one of"):
                other.clip(torch.ones(2), state)
    rule.clip(torch.ones(2), state)


def test_a_rule_given_whole_numbers_is_the_same_rule() -> None:
    state = clipping.get("quantile", threshold=1, rate=1).init(**contract.PUBLIC)
    clipping.get("quantile", threshold=1.0, rate=1.0).clip(torch.ones(2), state)
    with pytest.raises(InvalidInput, match="made by no rule"):
        clipping.get("quantile").clip(torch.ones(2), dataclasses.replace(state, origin=""))


@pytest.mark.parametrize("rule", RULES)
def test_rule_round_trips_through_json(rule: Any) -> None:
    data = json.dumps(clipping.to_dict(rule), allow_nan=False)
    assert clipping.from_dict(json.loads(data)) == rule


@pytest.mark.parametrize("rule", RULES)
def test_threshold_moves_the_right_way(rule: Any) -> None:
    contract.check_direction(rule)


@pytest.mark.parametrize("rule", RULES)
def test_no_step_waits_for_the_device(rule: Any) -> None:
    contract.check_device(rule)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("sigma", [0.3, 20.0])
@pytest.mark.parametrize("size", [1, 100_000])
def test_bound_holds_for_any_declared_numbers(rule: Any, sigma: float, size: int) -> None:
    public = {"noise_multiplier": sigma, "expected_batch_size": size, "dimension": 10**8}
    generator = torch.Generator().manual_seed(6)
    state = rule.init(**public)
    for family in contract.FAMILIES:
        norms = contract.draw(family, 20, state, generator, torch.float32)
        _, extras = contract.check_step(rule, norms, state)
        state = rule.update(state, contract.release(extras, state, generator, sigma))
        contract.check_limits(rule, state)


def _in_float32(state: clipping.State) -> clipping.State:
    """The state as it is on a device that has no float64."""
    tensors = {
        name: value.float()
        for name in ("threshold", "bound", "memory")
        if isinstance(value := getattr(state, name), torch.Tensor)
    }
    inner = None if state.inner is None else _in_float32(state.inner)
    return dataclasses.replace(state, **tensors, inner=inner)
