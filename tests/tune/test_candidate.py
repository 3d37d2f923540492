"""r is split three ways, always inside the box, and its product is kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpilot.errors import InvalidInput
from dpilot.tune.candidate import SPLITS, Candidate, SearchBox
from dpilot.tune.space import Always, Choice, LogUniform, Space, Uniform

boxes = st.builds(
    lambda low, ratio, few, more: SearchBox((low, low * ratio), (few, few + more)),
    st.floats(1e-4, 10),
    st.floats(1, 1e4),
    st.integers(1, 50),
    st.integers(0, 500),
)


@given(boxes, st.floats(1e-6, 1e8), st.sampled_from(SPLITS))
def test_a_candidate_is_inside_the_box_and_walks_as_far_as_was_asked(box, r, split):
    made = box.candidate(r, split)
    assert box.lr[0] <= made.lr <= box.lr[1]
    assert box.steps[0] <= made.steps <= box.steps[1]
    coarse = box.lr[1] / box.lr[0] < 2  # whole steps cannot make every product of a narrow box
    assert coarse or made.r == pytest.approx(box.inside(r), rel=1e-9)


def test_the_three_ways_move_what_they_say():
    box = SearchBox((0.01, 100.0), (10, 1000), Candidate(1.0, 100))
    assert box.candidate(500.0, "eta-first") == Candidate(5.0, 100)
    assert box.candidate(500.0, "steps-first") == Candidate(1.0, 500)
    assert box.candidate(100.0, "both") == Candidate(1.0, 100)


def test_where_the_first_variable_ends_the_other_takes_the_rest():
    box = SearchBox((0.1, 2.0), (10, 1000), Candidate(1.0, 100))
    assert box.candidate(1000.0, "eta-first") == Candidate(2.0, 500)
    assert box.candidate(1900.0, "steps-first") == Candidate(1.9, 1000)


def test_fixed_steps_leave_the_step_size_alone_to_vary():
    box = SearchBox.fixed((0.1, 10.0), 7)
    assert {box.candidate(r, split).steps for r in (0.1, 3, 100) for split in SPLITS} == {7}


@pytest.mark.parametrize("bad", [((2.0, 1.0), (1, 2)), ((1.0, 2.0), (3, 2)), ((0.0, 1.0), (1, 2))])
def test_a_box_is_an_order(bad):
    with pytest.raises(InvalidInput):
        SearchBox(*bad)


def test_spaces_draw_inside_and_name_their_steps():
    drawn = np.random.default_rng(0)
    space = Space(LogUniform(0.1, 10.0), Choice((5, 10)))
    candidates = [space.draw(drawn) for _ in range(200)]
    assert all(0.1 <= each.lr <= 10 for each in candidates)
    assert {each.steps for each in candidates} == {5, 10} == set(space.step_counts)
    assert 0.3 < np.mean([each.lr < 1 for each in candidates]) < 0.7
    with pytest.raises(InvalidInput, match="price of its own"):
        _ = Space(Always(1.0), Uniform(1, 9)).step_counts
