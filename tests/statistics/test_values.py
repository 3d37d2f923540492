"""Without noise, each statistic is the number it claims to be; with noise, close to it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dpilot import statistics as s
from dpilot.errors import InvalidInput
from dpilot.mechanism import seeded_noise
from dpilot.privacy.events import Gaussian
from dpilot.privacy.receipt import Receipt
from dpilot.statistics.rows import into_ball, into_box
from dpilot.tape import tape
from tests.distributions import REJECT, normal_p_value
from tests.statistics.helpers import Anything, exactly

NOISY = {"noise_multiplier": 2.0}
FINITE = st.floats(allow_nan=False, allow_infinity=False)
SMALL = arrays(np.float64, st.tuples(st.integers(0, 12), st.just(3)), elements=st.floats(-5, 5, width=32))


def test_count_counts_rows():
    assert exactly(s.count, np.zeros((17, 3)), **NOISY)[0] == 17


@given(SMALL)
def test_mean_of_records_inside_the_domain_is_their_sum_over_the_declared_size(rows):
    for domain in (s.Ball(100.0), s.Box(-6.0, 6.0), s.Box((-6.0,) * 3, (6.0,) * 3)):
        assert exactly(s.mean, rows, domain=domain, size=7, **NOISY)[0] == pytest.approx(
            rows.sum(0) / 7, abs=1e-3
        )  # a grid


def test_mean_is_measured_from_the_middle_of_the_box():
    value, entries = exactly(s.mean, np.full((10, 1), 99.0), domain=s.Box(0.0, 10.0), size=20, **NOISY)
    assert value == pytest.approx([5 + 10 * 5 / 20])
    assert entries[0].bound == 5


def test_bounds_are_those_of_the_domain():
    assert s.Ball(3.0).bound(7) == 3
    assert s.Box(0.0, 2.0).bound(9) == pytest.approx(3)
    assert s.Box((0.0, 0.0), (6.0, 8.0)).bound(2) == 5


@pytest.mark.parametrize(
    "ends", [(1, 1), (2, 1), (0, np.inf), (-1.7e308, 1.7e308), ((0, 0), (1,)), (np.nan, 1), ((), ())]
)
def test_boxes_are_checked(ends):
    with pytest.raises(InvalidInput, match="box"):
        s.Box(*ends)


def test_a_box_of_other_columns_is_refused():
    with pytest.raises(InvalidInput, match="one for each of 3 columns"):
        exactly(s.mean, np.zeros((2, 3)), domain=s.Box((0, 0), (1, 1)), size=2, **NOISY)


@given(arrays(np.float64, (5, 3), elements=FINITE), st.floats(1e-100, 1e100))
def test_the_ball_holds_every_row_and_keeps_those_inside(rows, radius):
    clipped = into_ball(rows, radius)
    norms = np.linalg.norm(clipped / radius, axis=1)
    assert norms.max() <= 1
    with np.errstate(over="ignore"):
        inside = np.linalg.norm(rows / radius, axis=1) < 1 - 1e-9
    assert np.array_equal(clipped[inside], rows[inside])
    assert norms[~inside] == pytest.approx(1.0)
    assert np.array_equal(np.sign(clipped[inside]), np.sign(rows[inside]))


def test_directions_survive_the_ball():
    assert into_ball(np.array([[3e200, -4e200]]), 5.0)[0] == pytest.approx([3, -4])
    assert np.array_equal(into_ball(np.zeros((1, 2)), 1.0), np.zeros((1, 2)))


@given(arrays(np.float64, (5, 1), elements=FINITE), st.floats(-1e15, 1e15), st.floats(1e-3, 1e3))
def test_the_box_holds_every_value_even_where_it_rounds(rows, lower, width):
    upper = lower + width
    if lower < upper:
        assert np.abs(into_box(rows, lower, upper)).max() <= (upper - lower) / 2


@pytest.mark.parametrize("row", [[3.0, 1e-310], [1e200, 1e-200], [1e308, -1e308], [5e-324, 5e-324]])
def test_no_number_raises_though_the_caller_lets_numpy_raise(row):
    data = np.concatenate([np.ones((5, 2)), [row]])
    with np.errstate(all="raise"):
        s.count(data, receipt=Anything(), **NOISY)
        for domain in (s.Ball(1.0), s.Ball(1e-150), s.Box(-1.0, 1.0), s.Box(-1e150, 1e150)):
            s.mean(data, domain=domain, size=6, receipt=Anything(), **NOISY)
        s.second_moment(data, radius=1.0, receipt=Anything(), **NOISY)
        s.table(data, shape=(2, 2), receipt=Anything(), **NOISY)
        s.histogram(data[:, 1], edges=[0, 1, 2], outside="edge", receipt=Anything(), **NOISY)
        s.quantile(data[:, 1], 0.5, grid=s.log_grid(1e-3, 1e3), receipt=Anything(), **NOISY)
        s.chosen_quantile(data[:, 1], 0.5, grid=s.log_grid(1e-3, 1e3), epsilon=1.0, receipt=Anything())


@given(SMALL)
def test_second_moment_is_the_sum_of_products(rows):
    assert exactly(s.second_moment, rows, radius=10.0, **NOISY)[0] == pytest.approx(rows.T @ rows, abs=1e-3)


def test_second_moment_has_symmetric_noise_of_radius_squared():
    noisy = s.second_moment(np.zeros((0, 300)), radius=3.0, receipt=Anything(), noise=seeded_noise(0), **NOISY)
    assert np.array_equal(noisy, noisy.T)
    assert normal_p_value(np.diag(noisy), 18.0) > REJECT
    assert normal_p_value(noisy[np.triu_indices(300, 1)], 18.0 / np.sqrt(2)) > REJECT
    assert normal_p_value(noisy[np.triu_indices(300, 1)], 18.0) < REJECT


VALUES = np.array([-9.0, -1.0, -0.5, 0.0, 0.5, 1.0, 1.0, 9.0])


def test_histogram_bins_are_closed_on_the_left_and_the_last_on_both_sides():
    assert exactly(s.histogram, VALUES, edges=[-1, 0, 1], **NOISY)[0].tolist() == [2, 4]
    assert exactly(s.histogram, VALUES, edges=[-1, 0, 1], outside="edge", **NOISY)[0].tolist() == [3, 5]


@pytest.mark.parametrize("edges", [[1], [], [1, 1], [2, 1], [0, np.inf], [0, np.nan], [[0, 1]]])
def test_edges_are_checked(edges):
    with pytest.raises(InvalidInput, match="edges"):
        exactly(s.histogram, VALUES, edges=edges, **NOISY)


def test_outside_is_one_of_two_names():
    with pytest.raises(InvalidInput, match="outside"):
        exactly(s.histogram, VALUES, edges=[0, 1], outside="drop", **NOISY)


def test_table_counts_combinations_and_leaves_out_what_is_no_code():
    codes = np.array([[0, 2], [1, 0], [1, 0], [2, 0], [0, 3], [-1, 0], [0.5, 0], [1, -0.0]])
    assert exactly(s.table, codes, shape=(2, 3), **NOISY)[0].tolist() == [[0, 0, 1], [3, 0, 0]]


def test_columns_and_axes_must_agree():
    with pytest.raises(InvalidInput, match="one an axis"):
        exactly(s.table, np.zeros((2, 3)), shape=(2, 3), **NOISY)
    for statistic, declared in ((s.histogram, {"edges": [0, 1], **NOISY}),):
        with pytest.raises(InvalidInput, match="expected one"):
            exactly(statistic, np.zeros((2, 3)), **declared)
    with pytest.raises(InvalidInput, match="expected one"):
        exactly(s.chosen_quantile, np.zeros((2, 3)), q=0.5, grid=np.array([0.0, 1.0]), epsilon=1.0)


GRIDS = st.lists(st.integers(-6, 6).map(float), min_size=2, max_size=13, unique=True).map(sorted).map(np.array)


def by_hand(column, q, grid):
    """The first grid point with at least a share q of the records at or below it, or the last."""
    enough = [g for g in grid if np.sum(column <= g) - q * column.size >= 0]
    return enough[0] if enough else grid[-1]


@given(SMALL, st.sampled_from([0.1, 0.5, 0.75, 0.9]), GRIDS)
def test_the_search_ends_at_the_quantile_of_every_column(rows, q, grid):
    found, entries = exactly(s.quantile, rows, q=q, grid=grid, **NOISY)
    assert found.tolist() == [by_hand(column, q, grid) for column in rows.T]
    assert len(entries) == np.ceil(np.log2(grid.size))


@given(SMALL, GRIDS)
def test_several_quantiles_are_each_what_they_would_be_alone(rows, grid):
    together, _ = exactly(s.quantile, rows, q=(0.1, 0.5, 0.9), grid=grid, **NOISY)
    alone = [exactly(s.quantile, rows, q=q, grid=grid, **NOISY)[0] for q in (0.1, 0.5, 0.9)]
    assert together.tolist() == np.array(alone).tolist()


@pytest.mark.parametrize(("q", "columns", "bound"), [(0.5, 1, 0.5), (0.9, 4, 1.8), (0.1, 4, 1.8), ((0.4, 0.8), 1, 1.0)])
def test_the_joint_bound_of_counts(q, columns, bound):
    grid = s.log_grid(1.0, 8.0, per_octave=1)  # 4 points, 2 rounds
    _, entries = exactly(s.quantile, np.zeros((3, columns)), q=q, grid=grid, **NOISY)
    assert [entry.bound for entry in entries] == pytest.approx([bound] * 2)
    assert entries[0].event.noise_multiplier == pytest.approx(2.0 * np.sqrt(2))


class Answering:
    """A tape that gives the same answer to everything."""

    def __init__(self, answer):
        self.answer = answer

    def release(self, entry, outputs):
        return [np.full_like(values, self.answer) for values in entry.inputs]

    def key(self, purpose, fresh):
        return fresh()


@pytest.mark.parametrize(("answer", "end"), [(-1.0, 8.0), (1.0, 1.0)])
def test_the_search_goes_by_the_released_answers_alone(answer, end):
    for value in (0.0, 2.5, 99.0):
        with tape(Answering(answer)):
            found = s.quantile(
                np.full(50, value), 0.5, grid=np.array([1.0, 2.0, 3.0, 8.0]), receipt=Anything(), **NOISY
            )
        assert found.tolist() == [end]


def test_noisy_quantiles_do_not_cross_and_stay_on_the_grid():
    grid, noise = s.log_grid(1.0, 100.0), seeded_noise(0)
    for _ in range(20):
        found = s.quantile(np.ones((3, 5)), (0.2, 0.5, 0.8), grid=grid, receipt=Anything(), noise=noise, **NOISY)
        assert (np.diff(found, axis=0) >= 0).all()
        assert np.isin(found, grid).all()


def test_noisy_quantiles_are_close():
    values = np.random.default_rng(1).lognormal(1.5, 0.4, (5000, 4))
    grid, noise = s.log_grid(), seeded_noise(1)
    found = s.quantile(values, 0.5, grid=grid, noise_multiplier=30.0, receipt=Anything(), noise=noise)
    chosen = s.chosen_quantile(values[:, 0], 0.5, grid=grid, epsilon=0.05, receipt=Anything(), noise=noise)
    assert np.append(found, chosen) == pytest.approx(np.exp(1.5), rel=0.15)


@given(arrays(np.float64, st.integers(0, 12), elements=st.floats(-5, 5)), st.sampled_from([0.1, 0.5, 0.9]), GRIDS)
def test_scores_of_the_chosen_quantile_are_minus_the_centred_counts(column, q, grid):
    _, (entry,) = exactly(s.chosen_quantile, column, q=q, grid=grid, epsilon=1.0)
    assert entry.inputs[0] == pytest.approx([-abs(np.sum(column <= g) - q * column.size) for g in grid], abs=1e-5)
    assert entry.bound == pytest.approx(max(q, 1 - q), abs=2**-24)


@pytest.mark.parametrize("q", [0, 1, -0.1, np.nan, (0.5, 0.5), (0.9, 0.1)])
def test_q_is_checked(q):
    with pytest.raises(InvalidInput, match="q "):
        exactly(s.quantile, np.zeros(3), q=q, grid=np.array([0.0, 1.0]), **NOISY)


def test_log_grids_have_their_ends_and_are_symmetric():
    grid = s.log_grid(0.5, 8.0, per_octave=3)
    assert grid.size == 13
    assert grid[[0, -1]] == pytest.approx([0.5, 8.0])
    signed = s.log_grid(0.5, 8.0, per_octave=3, signed=True)
    assert np.array_equal(signed, -signed[::-1])
    assert signed.size == 27
    with pytest.raises(InvalidInput, match="grid"):
        s.log_grid(8.0, 0.5)


@pytest.mark.parametrize("size", [0, -1, np.nan])
def test_the_declared_size_is_checked(size):
    with pytest.raises(InvalidInput, match="size"):
        exactly(s.mean, np.zeros(3), domain=s.Ball(1.0), size=size, **NOISY)


def test_masked_data_are_refused_by_statistics() -> None:
    data = np.ma.array([1.0, 2.0], mask=[0, 1])
    with pytest.raises(InvalidInput, match="MaskedArray"):
        s.count(data, noise_multiplier=1.0, receipt=Receipt(Gaussian(1.0)))


@pytest.mark.filterwarnings("error")
def test_a_signalling_nan_is_a_silent_null_record() -> None:
    bad = np.array([0x7F800001], dtype=np.uint32).view(np.float32)
    assert s.count(bad, noise_multiplier=1e-6, receipt=Receipt(Gaussian(1e-6))) == pytest.approx(0, abs=1e-3)


def test_no_message_tells_the_number_of_records() -> None:
    messages = set()
    for n in (10, 11):
        with pytest.raises(InvalidInput) as problem:
            s.count(np.empty((n, 2), dtype=object), noise_multiplier=1.0, receipt=Receipt(Gaussian(1.0)))
        messages.add(str(problem.value))
    assert len(messages) == 1


def test_domains_too_large_to_add_up_are_refused() -> None:
    with pytest.raises(InvalidInput, match="room for sums"):
        s.mean(
            np.array([9e307, 8e307]),
            domain=s.Ball(9e307),
            size=2,
            noise_multiplier=1.0,
            receipt=Receipt(Gaussian(1.0)),
        )


def test_the_bound_of_a_tiny_box_does_not_vanish() -> None:
    assert s.Box(0.0, 5.4e-162).bound(2) == pytest.approx(2.7e-162 * math.sqrt(2), rel=1e-9)
