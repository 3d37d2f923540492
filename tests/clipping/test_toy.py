"""The toy of Zhao et al. 2026, Figure 1: without a floor the minority is forgotten."""

import runpy
from pathlib import Path

import pytest

from dpilot import clipping

TOY = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "clipping_toy.py"))
RULES, descend = TOY["RULES"], TOY["descend"]


@pytest.mark.parametrize(("name", "end"), [("unbounded", 0.0), ("floor 0.1", 2 * 0.1 / 3), ("floor 0.6", 0.4)])
def test_estimate_ends_where_the_floor_puts_it(name: str, end: float) -> None:
    assert descend(RULES[name]).estimates[-1] == pytest.approx(end, abs=1e-3)


@pytest.mark.parametrize("first", [0.0, 0.2, 1.0])
def test_end_does_not_depend_on_the_beginning(first: float) -> None:
    assert descend(RULES["floor 0.1"], first=first).estimates[-1] == pytest.approx(0.0667, abs=1e-3)


@pytest.mark.parametrize("floor", [0.2, 0.4, 0.59])
def test_fixed_point_below_the_distance_to_the_minority_is_two_thirds_of_the_floor(floor: float) -> None:
    rule = clipping.get("bounded", tau=1.0, floor=floor)
    assert descend(rule).estimates[-1] == pytest.approx(2 * floor / 3, abs=1e-3)


def test_unbounded_threshold_vanishes_but_is_never_zero() -> None:
    last = descend(RULES["unbounded"]).thresholds[-1]
    assert 0 < last < 1e-9
