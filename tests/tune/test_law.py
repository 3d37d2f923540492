"""The law of r: exact on its points, guarded everywhere else, and the same after a round trip."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpilot import Budget
from dpilot.errors import InvalidInput
from dpilot.privacy import gdp_mu
from dpilot.tune import ScalingLaw


def law(*points, **options):
    return ScalingLaw(points=points, **{"low": 1.0, "high": 1e4, "fallback": 50.0, **options})


def test_a_line_through_two_points_is_extrapolated():
    assert law((0.1, 12.0), (0.2, 20.0)).predict(0.88) == pytest.approx(12 + 80 * 0.78)


def test_a_parabola_through_three_points_is_extrapolated():
    fitted = law((0.1, 11.0), (0.2, 14.0), (0.4, 26.0), degree=2)
    assert fitted.predict(1.0) == pytest.approx(10 + 100.0)
    assert fitted.explain(1.0).notes == ()


def test_in_mu_the_line_is_straight_in_mu():
    points = [(epsilon, 100 * gdp_mu(Budget(epsilon, 1e-5)) + 3) for epsilon in (0.1, 0.2)]
    fitted = law(*points, variable="mu")
    assert fitted.predict(0.9) == pytest.approx(100 * gdp_mu(Budget(0.9, 1e-5)) + 3)
    assert law(*points).predict(0.9) != pytest.approx(fitted.predict(0.9), rel=1e-3)


@pytest.mark.parametrize("points", [((0.1, 20.0), (0.2, 10.0)), ((0.1, 5.0), (0.2, 4.99))])
def test_a_falling_law_becomes_proportional_and_says_so(points):
    prediction = law(*points).explain(1.0)
    assert prediction.r == pytest.approx(math.sqrt(points[0][1] / 0.1 * points[1][1] / 0.2))
    assert "falls" in prediction.notes[0]
    assert "in proportion" in prediction.notes[0]


def test_a_negative_extrapolation_becomes_proportional():
    prediction = law((0.5, 2.0), (1.0, 100.0)).explain(0.01)
    assert prediction.r == 1.0  # brought inside the grid
    assert any("in proportion" in note for note in prediction.notes)


def test_one_point_is_proportional_and_none_is_the_fallback():
    assert law((0.1, 10.0)).predict(0.5) == pytest.approx(50.0)
    assert "one point" in law((0.1, 10.0)).explain(0.5).notes[0]
    assert law().predict(3.0) == 50.0
    assert "data-free" in law().explain(3.0).notes[0]


def test_outside_the_grid_its_end_is_used_and_said():
    prediction = law((0.1, 1000.0), (0.2, 2000.0)).explain(8.0)
    assert prediction.r == 1e4
    assert "above the grid" in prediction.notes[0]


values = st.floats(1e-3, 1e3)


@given(st.lists(st.tuples(values, values), max_size=4, unique_by=lambda p: round(p[0], 3)), st.integers(0, 3), values)
def test_no_points_make_a_prediction_that_leaves_the_grid(points, degree, epsilon):
    fitted = law(*points, degree=degree)
    assert 1.0 <= fitted.predict(epsilon) <= 1e4
    assert ScalingLaw.from_json(fitted.to_json()) == fitted


def test_other_documents_are_refused():
    for text in ("[]", "{}", '{"format": 9}', "no", '{"format": 1, "points": []}'):
        with pytest.raises(InvalidInput):
            ScalingLaw.from_json(text)
    with pytest.raises(InvalidInput, match="one r"):
        law((0.1, 2.0), (0.1, 3.0))
