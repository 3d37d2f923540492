"""Which rows count for a unit is that unit's own business: its id, its number of rows and a secret key."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dpilot.data.units import _digest, _firsts, _name, _names, group_rows
from dpilot.keys import KEY_BYTES
from dpilot.privacy.unit import PrivacyUnit

KEY = bytes(range(KEY_BYTES))
UNIT = PrivacyUnit("patient_id", 3)


def by_unit(rows):
    return {int(unit): rows.places[rows.units == unit].tolist() for unit in range(rows.count)}


@pytest.mark.parametrize("seed", range(5))
def test_at_most_the_cap_of_each_units_own_rows_count(seed):
    ids = np.random.default_rng(seed).integers(0, 40, 200)
    found = by_unit(group_rows(ids, UNIT, key=KEY))
    first = list(dict.fromkeys(ids.tolist()))
    assert len(found) == len(first)
    for number, places in found.items():
        own = np.flatnonzero(ids == first[number])
        assert len(places) == len(set(places)) == min(3, own.size)
        assert set(places) <= set(own.tolist())


@pytest.mark.parametrize("more", [["new"] * 1, ["new"] * 3, ["new"] * 1000, [None] * 5, [7.5, "x", b"y"]])
def test_rows_of_another_unit_move_nothing(more):
    ids = [f"p{number}" for number in np.random.default_rng(0).integers(0, 30, 150)]
    before, after = (by_unit(group_rows(each, UNIT, key=KEY)) for each in (ids, [*ids, *more]))
    assert {number: after[number] for number in before} == before


def test_shares_of_a_unit_add_up_to_one_and_one_row_is_drawn():
    ids = np.random.default_rng(1).integers(0, 50, 300)
    rows = group_rows(ids, UNIT, key=KEY)
    assert np.allclose(np.bincount(rows.units, rows.shares), 1.0)
    assert len(rows.drawn) == rows.count == len(set(ids.tolist()))
    assert len(set(ids[rows.drawn].tolist())) == rows.count


def test_the_drawn_row_and_the_rows_that_count_are_uniform():
    rng = np.random.default_rng(2)
    drawn, kept = np.zeros(6), np.zeros(6)
    for _ in range(200):
        ids = np.repeat(np.arange(50), 6)
        rows = group_rows(ids, UNIT, key=rng.bytes(KEY_BYTES))
        drawn += np.bincount(rows.drawn % 6, minlength=6)
        kept += np.bincount(rows.places % 6, minlength=6)
    for found, share in ((drawn, 1 / 6), (kept, 3 / 6)):
        deviation = np.sqrt(200 * 50 * share * (1 - share))
        assert np.abs(found - 200 * 50 * share).max() < 4.5 * deviation


@pytest.mark.parametrize(
    "ids",
    [
        [1, 2, 1, 3], [1.0, 2.0, 1.0, 3.0], ["1", "2", "1", "3"], np.array([1, 2, 1, 3], dtype=np.int8),
        np.array(["1", "2", "1", "3"]), pd.Series([1, 2, 1, 3], dtype="Int64"), pl.Series([1, 2, 1, 3]),
        pa.array(["1", "2", "1", "3"]), pa.chunked_array([[1, 2], [1, 3]]), [b"1", 2.0, True, "3.0"],
        pd.Series([1, 2, 1, 3]).astype("category"), np.array([1, 2, 1, 3], dtype=object),
    ],
)  # fmt: skip
def test_one_id_in_every_type_is_one_unit(ids):
    assert by_unit(group_rows(ids, UNIT, key=KEY)) == by_unit(group_rows([1, 2, 1, 3], UNIT, key=KEY))


@pytest.mark.parametrize("none", [None, np.nan, pd.NA, pd.NaT, "", "  ", "nan", [1, 2], 2**53])
def test_a_row_without_an_id_counts_for_nothing_or_is_a_unit_of_its_own(none):
    ids = np.fromiter([1, none, 1, none], dtype=object)
    rows = group_rows(ids, UNIT, key=KEY)
    assert (rows.count, sorted(rows.places.tolist())) == (1, [0, 2])
    alone = group_rows(ids, PrivacyUnit("patient_id", 3, "row"), key=KEY)
    assert sorted(by_unit(alone).values(), key=min) == [sorted_like(alone, [0, 2]), [1], [3]]


def sorted_like(rows, places):
    return [place for place in rows.places.tolist() if place in places]


def test_units_are_taken_whole():
    ids = np.random.default_rng(3).integers(0, 20, 100)
    rows = group_rows(ids, UNIT, key=KEY)
    part = rows.take(np.array([1, 4, 7]))
    assert by_unit(part) == {number: by_unit(rows)[unit] for number, unit in enumerate((1, 4, 7))}


def test_the_first_rows_of_units_are_those_of_a_lower_cap():
    ids = np.random.default_rng(3).integers(0, 20, 100)
    wide, narrow = (group_rows(ids, PrivacyUnit("patient_id", rows), key=KEY) for rows in (64, 3))
    assert by_unit(wide.first(3)) == by_unit(narrow)


def test_a_table_without_rows_has_no_units():
    rows = group_rows([], UNIT, key=KEY)
    assert (rows.count, rows.places.size, rows.drawn.size, rows.shares.size) == (0, 0, 0, 0)


def test_ids_on_disk_are_told_apart_by_all_of_128_bits():
    assert len(_digest("ann", KEY)) == 16
    halves = np.array([[1, 1], [2, 1], [2, 2], [2, 2]], dtype=np.uint64)
    assert _firsts(halves).tolist() == [True, True, True, False]


@pytest.mark.parametrize(
    "ids",
    [
        pd.Categorical(["a", "b", "a"]),
        pd.CategoricalIndex(["a", "b", "a"]),
        pd.Index(["a", "b", "a"]),
        pd.array([1, 2, 1], dtype="Int64"),
        np.ma.array(np.array(["2020-01-01", "2020-01-02", "2020-01-01"], dtype="M8[ns]"), mask=[0, 0, 0]),
    ],
    ids=lambda ids: type(ids).__name__,
)
def test_ids_in_every_container_are_read(ids):
    assert np.bincount(group_rows(ids, UNIT, key=KEY).units).tolist() == [2, 1]


@pytest.mark.parametrize("exact", [True, False])
def test_whole_numbers_are_named_as_each_by_itself(exact):
    edges = [0, 7, -7, 2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1]
    cells = np.array([*edges, 7], dtype=np.int64)
    assert list(_names(cells, exact)) == [_name(each, exact) for each in cells.tolist()]
    assert list(_names(cells[:3].astype(np.float64), exact)) == ["0", "7", "-7"]
