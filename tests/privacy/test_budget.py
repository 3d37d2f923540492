"""Budgets refuse what protects nobody."""

from __future__ import annotations

import dataclasses
import math

import pytest

from dpilot import Budget, Cost
from dpilot.errors import InvalidInput
from dpilot.privacy import check_delta, default_delta


@pytest.mark.parametrize("epsilon", [0, -1, math.nan, math.inf, -math.inf, "1", None, True])
def test_epsilon_is_refused(epsilon: object) -> None:
    with pytest.raises(InvalidInput, match=r"epsilon is .*expected a finite number > 0"):
        Budget(epsilon, 1e-5)  # type: ignore[arg-type]


@pytest.mark.parametrize("delta", [0, 1, -1e-5, 1.5, math.nan, "1e-5"])
def test_delta_is_refused(delta: object) -> None:
    with pytest.raises(InvalidInput, match=r"delta is .*expected a number in \(0, 1\)"):
        Budget(1.0, delta)  # type: ignore[arg-type]


def test_a_budget_is_a_frozen_value() -> None:
    assert Budget(1, 1e-5) == Budget(1.0, 1e-5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Budget(1.0, 1e-5).epsilon = 2.0  # type: ignore[misc]


def test_a_cost_may_be_zero() -> None:
    assert Cost(0, 0) == Cost(0.0, 0.0)
    with pytest.raises(InvalidInput, match="epsilon"):
        Cost(-1, 0)


@pytest.mark.parametrize(("delta", "size"), [(1e-3, 1000), (1e-2, 1000), (0.5, 2)])
def test_delta_of_a_whole_record_is_refused(delta: float, size: int) -> None:
    with pytest.raises(InvalidInput, match="one random record"):
        check_delta(delta, size)
    assert "large" in str(check_delta(delta, size, allow_large=True))


def test_large_delta_is_noted() -> None:
    assert "above 1/(10 size)" in str(check_delta(5e-4, 1000))
    assert check_delta(1e-4, 1000) is None
    assert check_delta(default_delta(123_457), 123_457) is None


def test_default_delta() -> None:
    assert default_delta() == 1e-5
    assert default_delta(1000) == 1e-5
    assert default_delta(50_000) == 2e-6
