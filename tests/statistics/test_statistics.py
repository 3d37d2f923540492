"""What all statistics share: declared cost, sensitivity kept and reached, null records, tables in pieces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpilot import statistics as s
from dpilot.errors import InvalidInput
from tests.statistics.helpers import drawn_exactly, exactly, moved

GRID = s.log_grid(0.25, 16.0, per_octave=2, signed=True)
NOISY = {"noise_multiplier": 2.0}
TABLE = {
    "count": (s.count, s.count_event(2.0), NOISY),
    "mean in a ball": (s.mean, s.mean_event(2.0), {**NOISY, "domain": s.Ball(3.0), "size": 50}),
    "mean in a box": (s.mean, s.mean_event(2.0), {**NOISY, "domain": s.Box((-1.0, 0.0), (1.0, 8.0)), "size": 50}),
    "second moment": (s.second_moment, s.second_moment_event(2.0), {**NOISY, "radius": 3.0}),
    "table": (s.table, s.table_event(2.0), {**NOISY, "shape": (4, 3)}),
    "quantile": (s.quantile, s.quantile_event(2.0, grid=GRID), {**NOISY, "q": 0.9, "grid": GRID}),
    "quantiles": (s.quantile, s.quantile_event(2.0, grid=GRID), {**NOISY, "q": (0.1, 0.5), "grid": GRID}),
}
COLUMN = {
    "histogram": (s.histogram, s.histogram_event(2.0), {**NOISY, "edges": [-4, 0, 4, 8]}),
    "edge histogram": (s.histogram, s.histogram_event(2.0), {**NOISY, "edges": [-4, 0, 4], "outside": "edge"}),
    "chosen quantile": (s.chosen_quantile, s.chosen_quantile_event(1.0), {"epsilon": 1.0, "q": 0.3, "grid": GRID}),
}
ALL = {**TABLE, **COLUMN}
every = pytest.mark.parametrize("name", ALL)

ROWS = np.random.default_rng(0).integers(0, 3, (40, 2)).astype(float)
ANY = st.floats(allow_nan=True, allow_infinity=True)


def rows_for(name, rows=ROWS):
    return rows if name in TABLE else rows[:, :1]


@every
def test_cost_is_what_the_event_said(name):
    statistic, event, declared = ALL[name]
    assert drawn_exactly(statistic, event, rows_for(name), **declared)


@every
@given(record=st.tuples(ANY, ANY))
def test_no_record_moves_a_release_beyond_its_bound(name, record):
    statistic, _, declared = ALL[name]
    assert moved(statistic, rows_for(name), rows_for(name, np.array([record])), **declared) <= 1 + 1e-9


REACHING = {
    "count": (7.0, 7.0),
    "mean in a ball": (30.0, 40.0),
    "mean in a box": (5.0, -9.0),
    "second moment": (-1e200, 1e200),
    "table": (3.0, 2.0),
    "quantile": (99.0, 99.0),
    "quantiles": (-99.0, -99.0),
    "histogram": (8.0, 0.0),
    "edge histogram": (1e9, 0.0),
    "chosen quantile": (-99.0, 0.0),
}


@every
def test_some_record_reaches_the_bound(name):
    record = rows_for(name, np.array([REACHING[name]]))
    assert moved(ALL[name][0], rows_for(name), record, **ALL[name][2]) == pytest.approx(1.0, rel=2e-4)  # on a grid


@every
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_record_that_is_not_finite_is_the_null_record(name, bad):
    statistic, _, declared = ALL[name]
    null = rows_for(name, np.array([[bad, 1.0]]))
    before, entries = exactly(statistic, rows_for(name), **declared)
    after, changed = exactly(statistic, np.concatenate([rows_for(name), null]), **declared)
    assert np.array_equal(before, after)
    for one, other in zip(entries, changed, strict=True):
        assert np.array_equal(one.inputs[0], other.inputs[0])


@every
def test_a_table_in_pieces_gives_the_same_sums(name):
    statistic, _, declared = ALL[name]
    whole, _ = exactly(statistic, rows_for(name), **declared)
    pieces, _ = exactly(statistic, iter(np.array_split(rows_for(name), 7)), **declared)
    assert pieces == pytest.approx(whole)


@every
def test_tables_longer_than_a_block_are_read_to_the_end(name):
    statistic, _, declared = ALL[name]
    long = rows_for(name, np.concatenate([np.zeros((70_000, 2)), np.full((70_000, 2), 2.0)]))
    short = rows_for(name, np.concatenate([np.zeros((70, 2)), np.full((70, 2), 2.0)]))
    (_, (of_long, *_)), (_, (of_short, *_)) = (exactly(statistic, rows, **declared) for rows in (long, short))
    assert of_long.inputs[0] == pytest.approx(1000 * of_short.inputs[0])


@every
def test_no_records_are_a_release_of_noise_alone(name):
    statistic, event, declared = ALL[name]
    empty = rows_for(name, np.zeros((0, 2)))
    assert drawn_exactly(statistic, event, empty, **declared)
    assert not np.any(exactly(statistic, empty, **declared)[1][0].inputs[0])


@every
def test_integers_and_booleans_are_numbers(name):
    statistic, _, declared = ALL[name]
    for kind in (np.int8, np.uint64, np.float32, np.bool_):
        data = rows_for(name, ROWS.astype(kind))
        same, _ = exactly(statistic, data.astype(float), **declared)
        assert exactly(statistic, data, **declared)[0] == pytest.approx(same)


UNFIT = {
    "text": np.array(["a", "b"]),
    "objects": np.array([1, None], dtype=object),
    "complex": np.zeros(3, complex),
    "cube": np.zeros((2, 2, 2)),
    "list": [1.0, 2.0],
    "no pieces": iter([]),
    "odd pieces": iter([np.zeros((1, 2)), np.zeros((1, 3))]),
}


@pytest.mark.parametrize("what", UNFIT)
def test_what_is_no_table_of_numbers_is_refused_before_it_is_paid(what):
    paid = []

    class Noted:
        def draw(self, event):
            paid.append(event)

    with pytest.raises(InvalidInput):
        s.count(UNFIT[what], receipt=Noted(), **NOISY)
    assert paid == []


def test_wide_floats_that_do_not_fit_are_null():
    data = np.array([1.0, 2.0], dtype=np.longdouble)
    data[1] = np.finfo(np.longdouble).max
    assert exactly(s.count, data, **NOISY)[0] == (1 if np.finfo(np.longdouble).max > np.finfo(float).max else 2)
