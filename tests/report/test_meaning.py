"""What epsilon means: the bounds on belief, against randomised response, which reaches them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpilot.report import promise


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("before", [0.001, 0.3, 0.5, 0.99])
def test_randomised_response_reaches_the_bounds(before: float, epsilon: float) -> None:
    honest = math.exp(epsilon) / (1 + math.exp(epsilon))
    said_yes = before * honest / (before * honest + (1 - before) * (1 - honest))
    said_no = before * (1 - honest) / (before * (1 - honest) + (1 - before) * honest)
    found = promise.belief(before, epsilon)
    assert found.most == pytest.approx(said_yes, rel=1e-12)
    assert found.least == pytest.approx(said_no, rel=1e-12)


@given(st.floats(1e-9, 1 - 1e-9), st.floats(0, 1e300))
def test_bounds_are_chances_around_the_belief_for_any_epsilon(before: float, epsilon: float) -> None:
    found = promise.belief(before, epsilon)
    assert 0 <= found.least <= before * (1 + 1e-12)
    assert before * (1 - 1e-12) <= found.most <= 1


@given(st.floats(0, allow_nan=False))
def test_every_epsilon_has_a_grade_and_a_larger_one_none_that_sounds_better(epsilon: float) -> None:
    order = ["Strongly", "Moderately", "Weakly", "Hardly"]
    grades = [order.index(promise.grade(each).split(":")[0].split(",")[0]) for each in (epsilon, 2 * epsilon + 1)]
    assert grades == sorted(grades)
