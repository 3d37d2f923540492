"""The encoder: what a record becomes, and that it becomes so whatever the others are."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from fractions import Fraction
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpilot.data.bundled import adult
from dpilot.data.cells import UNREADABLE
from dpilot.data.encoder import Encoder
from dpilot.data.files import Table
from dpilot.data.schema import Schema
from dpilot.errors import InvalidInput

DECLARED: dict[str, Any] = {
    "columns": {
        "x": {"type": "numeric", "bounds": [-10, 30]},
        "y": {"type": "numeric", "bounds": [0, 1], "missing": "null", "outside": "clamp"},
        "c": {"type": "categorical", "categories": ["a", "1", "x"]},
        "g": {"type": "categorical", "categories": ["f", "m"], "role": "protected"},
        "t": {"type": "categorical", "categories": ["no", "yes"], "role": "target"},
    }
}
SCHEMA = Schema.from_dict(DECLARED)
ENCODER = Encoder(SCHEMA)


def frame(**columns: list[Any]) -> dict[str, list[Any]]:
    length = len(next(iter(columns.values())))
    base = {"x": [10] * length, "y": [0.5] * length, "c": ["a"] * length, "g": ["m"] * length, "t": ["yes"] * length}
    return base | columns


def test_the_names_and_the_width_of_what_comes_out() -> None:
    assert ENCODER.names == ("x", "x is missing", "y", "c=a", "c=1", "c=x", "c is missing")
    assert ENCODER.width == 7


def test_a_record_by_hand() -> None:
    result = ENCODER.encode(frame(x=[10, None, 30], y=[0.5, 0.75, 7.0], c=["a", "1", None], t=["yes", "no", "yes"]))
    assert result.features.dtype == np.float32
    assert result.features.tolist() == [
        [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0],
        [0.0, 1.0, 0.5, 0.0, 1.0, 0.0, 0.0],
        [1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0],
    ]
    assert result.target.tolist() == [1.0, 0.0, 1.0]
    assert result.group.tolist() == [1.0, 1.0, 1.0]


def kinds(cells: list[tuple[Any, Any]]) -> list[str]:
    return [f"{type(cell).__name__} {place}" for place, (cell, _) in enumerate(cells)]


CELLS_X = [
    (10, 0.0), (10.0, 0.0), ("10", 0.0), (" 1e1 ", 0.0), (b"10", 0.0), (np.int8(10), 0.0), (np.float16(10), 0.0),
    (Decimal(10), 0.0), (Fraction(10), 0.0), (True, -0.45), (np.True_, -0.45), (-10, -1.0), (30, 1.0),
    (-10.000001, None), (30.000001, None), ("thirty", None), ("1,000", None), ("inf", None),
    (float("inf"), None), (-float("inf"), None), (1j, None), ([10], None), ({}, None), (object(), None),
    (10**400, None), (b"\xff", None), (Decimal("sNaN"), None), (datetime.date(2020, 1, 1), None),
    (pd.Timestamp("2020"), None), (UNREADABLE, None), (np.array([1, 2]), None), ("9" * 5000, None), ("١٠", 0.0),
    (10 + 0j, 0.0), (np.complex64(10), 0.0), ("True", -0.45), ("false", -0.5),
    ("", 7), ("  ", 7), ("nan", 7), ("NaN", 7), (complex("nan"), 7),
    (None, 7), (float("nan"), 7), (pd.NA, 7), (pd.NaT, 7), (np.float32("nan"), 7), (Decimal("NaN"), 7),
]  # fmt: skip


@pytest.mark.parametrize(("cell", "value"), CELLS_X, ids=kinds(CELLS_X))
def test_a_cell_of_a_numeric_column(cell: object, value: float | None) -> None:
    """None: the record is null; 7: the value is missing."""
    rows = ENCODER.encode(frame(x=[10, cell, 10]))
    assert rows.features[[0, 2], :2].tolist() == [[0.0, 0.0]] * 2
    if value is None:
        assert np.isnan(rows.features[1]).all()
        assert np.isnan([rows.target[1], rows.group[1]]).all()
    elif value == 7:
        assert rows.features[1, :2].tolist() == [0.0, 1.0]
    else:
        assert rows.features[1, :2].tolist() == [pytest.approx(value), 0.0]


CELLS_C = [
    ("a", 0), (" a\t", 0), (b"a", 0), (np.str_("a"), 0), (1, 1), (1.0, 1), ("1", 1), ("1.0", 1), (np.int64(1), 1),
    (Decimal(1), 1), (True, 1), (np.True_, 1), ("True", 1), ("true", 1), (1 + 0j, 1),
    (np.float32(1), 1), ("x", 2), ("", 3), (None, 3), (pd.NA, 3), (" ", 3),
    (float("nan"), 3), ("nan", 3), ("NaT", 3),
    ("A", None), ("b", None), ("false", None), ("01", None), (1j, None),
    (False, None), (2, None), (1.5, None), (float("inf"), None),
    (["a"], None), ({"a"}, None), (object(), None), ("x" * 10**6, None), ("\ud800", None), (UNREADABLE, None),
    (10**5000, None), (datetime.date(2020, 1, 1), None),
]  # fmt: skip


@pytest.mark.parametrize(("cell", "place"), CELLS_C, ids=kinds(CELLS_C))
def test_a_cell_of_a_categorical_column(cell: object, place: int | None) -> None:
    rows = ENCODER.encode(frame(c=["a", cell, "1"]))
    assert rows.features[[0, 2], 3:].tolist() == [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]
    if place is None:
        assert np.isnan(rows.features[1]).all()
    else:
        assert rows.features[1, 3:].tolist() == np.eye(4)[place].tolist()


@pytest.mark.parametrize("name", ["g", "t", "y"])
@pytest.mark.parametrize("cell", [None, "", "unseen", float("nan"), [], UNREADABLE])
def test_a_record_is_null_where_a_value_is_needed(name: str, cell: object) -> None:
    good = {"g": "f", "t": "no", "y": 0.25}[name]
    rows = ENCODER.encode(frame(**{name: [good, cell, good]}))
    assert np.isnan(rows.features).all(axis=1).tolist() == [False, True, False]
    assert np.isnan(rows.target).tolist() == np.isnan(rows.group).tolist() == [False, True, False]


def test_an_empty_text_may_be_declared_a_category() -> None:
    schema = Schema.from_dict({"columns": {"c": {"type": "categorical", "categories": ["", "a"], "missing": "null"}}})
    assert Encoder(schema).encode({"c": ["", "a"]}).features.tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_other_texts_may_mean_missing_even_numbers() -> None:
    schema = Schema.from_dict({**DECLARED, "missing_values": ["NA", "-9"]})
    rows = Encoder(schema).encode(frame(x=["-9", "NA", "10", "-9.0", ""], c=["NA", "-9", "a", "a", "a"]))
    assert rows.features[:4, 1].tolist() == [1.0, 1.0, 0.0, 1.0]
    assert rows.features[:3, 6].tolist() == [1.0, 1.0, 0.0]
    assert np.isnan(rows.features[4]).all()
    for values in (["-9", "10"], np.array([-9, 10]), np.array([-9.0, 10.0]), np.array([-9, 10 + 0j])):
        assert Encoder(schema).encode(frame(x=values)).features[:, 1].tolist() == [1.0, 0.0]


cells = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=3), st.dates(),
    st.decimals(), st.lists(st.integers(), max_size=2), st.sampled_from(["a", "1", "f", "yes", "0.5", pd.NA, pd.NaT]),
)  # fmt: skip


@given(st.fixed_dictionaries(dict.fromkeys(SCHEMA.columns, cells)), st.integers(0, 4))
@settings(max_examples=300, deadline=None)
def test_no_record_raises_or_changes_another(record: dict[str, Any], place: int) -> None:
    others = frame(x=[0, 1.5, "2", None], c=["a", 1, True, ""], y=[0, 1, "0.5", 0.25])
    table = {name: [*values[:place], record[name], *values[place:]] for name, values in others.items()}
    alone, rows = ENCODER.encode(others), ENCODER.encode(pd.DataFrame(table, dtype=object))
    assert np.array_equal(np.delete(rows.features, place, axis=0), alone.features)
    assert np.array_equal(np.delete(rows.target, place), alone.target)
    assert np.array_equal(np.delete(rows.group, place), alone.group)
    own = np.array([*rows.features[place], rows.target[place], rows.group[place]])
    assert np.isnan(own).all() or (np.isfinite(own).all() and np.abs(own).max() <= 1)


@pytest.mark.parametrize("extra", [None, float("nan"), "?", True, 0.5, 10**30, datetime.date(2020, 1, 1)])
def test_types_that_a_library_chose_for_the_sake_of_one_record_change_no_other(extra: object) -> None:
    """pandas makes floats of integers for one missing value, and objects for one text."""
    schema = Schema.from_dict({"columns": {"c": {"type": "categorical", "categories": [1, 2, 3]}}})
    plain = Encoder(schema).encode(pd.DataFrame({"c": [1, 2, 3]})).features
    assert plain.tolist() == np.eye(4)[:3].tolist()
    for table in (pd.DataFrame({"c": [1, 2, 3, extra]}), pd.DataFrame({"c": [1, 2, 3, extra]}).astype("category")):
        assert np.array_equal(Encoder(schema).encode(table).features[:3], plain)


def test_every_kind_of_table_gives_the_same() -> None:
    columns = frame(x=[0, None, 30], c=["a", "1", None], t=["yes", None, "no"])
    expected = ENCODER.encode(columns)
    pandas = pd.DataFrame(columns)
    tables = {
        "pandas": pandas,
        "nullable": pandas.convert_dtypes(),
        "categories": pandas.astype(dict.fromkeys("cgt", "category")),
        "arrow types": pandas.convert_dtypes(dtype_backend="pyarrow"),
        "objects": pandas.astype(object),
        "polars": pl.DataFrame(columns),
        "polars categories": pl.DataFrame(columns).with_columns(pl.col("c", "t").cast(pl.Categorical)),
        "arrow": pa.table(columns),
        "arrow chunks": pa.concat_tables([pa.table(columns).slice(0, 1), pa.table(columns).slice(1)]),
        "another order": pandas[["t", "c", "g", "y", "x"]].assign(more=1),
        "an index": pandas.set_index(pd.Index([5, 5, 1])),
    }
    for name, table in tables.items():
        result = ENCODER.encode(table)
        assert np.array_equal(result.features, expected.features, equal_nan=True), name
        assert np.array_equal(result.target, expected.target, equal_nan=True), name
        assert np.array_equal(result.group, expected.group, equal_nan=True), name


def test_masked_values_are_missing() -> None:
    rows = ENCODER.encode(frame(x=np.ma.array([10, 10], mask=[False, True])))  # type: ignore[arg-type]
    assert rows.features[:, 1].tolist() == [0.0, 1.0]


def test_a_dictionary_as_large_as_its_index_type() -> None:
    names = [str(place) for place in range(128)]
    schema = Schema.from_dict({"columns": {"c": {"type": "categorical", "categories": names}}})
    column = pa.array([*names, None]).dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string()))
    assert np.array_equal(Encoder(schema).encode({"c": column}).features, np.eye(129))


def test_facts_of_the_table_raise() -> None:
    good = pd.DataFrame(frame(x=[1, 2]))
    for table, told in [
        (good.drop(columns="c"), "'c' of the schema is not in the table"),
        (good.drop(columns="t"), "'t' of the schema is not in the table"),
        (pd.concat([good, good[["x"]]], axis=1), "'x' of the schema is more than once"),
        ({**frame(x=[1, 2]), "y": [0.5]}, "different lengths"),
        (pl.DataFrame(good).with_columns(x=pl.lit(datetime.date(2020, 1, 1))), "dates or times"),
        (pl.DataFrame(good).with_columns(x=pl.lit([1])), "lists or records"),
        ({**frame(x=[1, 2]), "y": np.zeros((2, 2))}, "2 dimensions"),
        (np.zeros((2, 5)), "expected a data frame"),
        ([[1]], "expected a data frame"),
        (None, "expected a data frame"),
    ]:
        with pytest.raises(InvalidInput, match=told):
            ENCODER.encode(table)


def test_no_rows_are_no_rows() -> None:
    for table in (frame(x=[]), pd.DataFrame(frame(x=[])), pl.DataFrame(frame(x=[]))):
        result = ENCODER.encode(table)
        assert result.features.shape == (0, 7)
        assert result.target.shape == result.group.shape == (0,)


def test_prediction_asks_for_no_target_and_no_group() -> None:
    table = {name: values for name, values in frame(x=[10, "?", 10]).items() if name in "xyc"}
    features = ENCODER.encode_features(table)
    assert np.isnan(features).all(axis=1).tolist() == [False, True, False]
    assert np.array_equal(features[0], ENCODER.encode(frame(x=[10])).features[0])


def test_bought_bounds_clamp_and_what_is_not_finite_is_null() -> None:
    schema = Schema.from_dict({"columns": {"x": {"type": "numeric", "bounds": "buy"}}})
    with pytest.raises(InvalidInput, match="still to be bought"):
        Encoder(schema)
    encoder = Encoder(schema.with_bounds({"x": (0.0, 10.0)}))
    rows = encoder.encode({"x": [-5, 15, 5, float("inf"), -float("inf"), "x", None]}).features
    assert rows[[0, 1, 2, 6]].tolist() == [[-1.0, 0.0], [1.0, 0.0], [0.0, 0.0], [0.0, 1.0]]
    assert np.isnan(rows[3:6]).all()


def test_a_numeric_target_is_scaled() -> None:
    schema = Schema.from_dict(
        {"columns": {"x": DECLARED["columns"]["x"], "t": {"type": "numeric", "bounds": [0, 200], "role": "target"}}}
    )
    encoder = Encoder(schema)
    target = encoder.encode({"x": [0] * 5, "t": [0, 50, 200, 201, None]}).target
    assert target.tolist()[:3] == [-1.0, -0.5, 1.0]
    assert np.isnan(target[3:]).all()


@given(st.floats(-1e300, 1e300), st.floats(-1e300, 1e300), st.floats(allow_nan=False))
def test_scaled_values_stay_within_one(a: float, b: float, value: float) -> None:
    low, high = min(a, b), max(a, b)
    if not high - low >= 1e-300:
        return
    schema = Schema.from_dict({"columns": {"x": {"type": "numeric", "bounds": [low, high], "missing": "null"}}})
    (scaled,) = Encoder(schema).encode({"x": [value]}).features[0]
    assert np.isnan(scaled) if not low <= value <= high else abs(scaled) <= 1


def test_an_encoder_is_saved_and_loaded() -> None:
    for schema in (SCHEMA, adult()[1]):
        encoder = Encoder(schema)
        assert Encoder.from_dict(json.loads(json.dumps(encoder.to_dict()))) == encoder
    for wrong in (None, {}, {**ENCODER.to_dict(), "version": 2}, {"kind": "dpilot encoder", "version": 1}):
        with pytest.raises(InvalidInput):
            Encoder.from_dict(wrong)


def test_a_schema_without_features_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no features"):
        Encoder(Schema.from_dict({"columns": {"t": DECLARED["columns"]["t"]}}))
    with pytest.raises(InvalidInput, match="expected a Schema"):
        Encoder(DECLARED)  # type: ignore[arg-type]


def test_adult_is_all_inside_its_schema_and_quickly_encoded() -> None:
    path, schema = adult()
    encoder = Encoder(schema)
    table = pd.read_parquet(path)
    seconds = []
    for _ in range(3):
        start = perf_counter()
        result = encoder.encode(table)
        seconds.append(perf_counter() - start)
    assert result.features.shape == (48_842, encoder.width)
    assert np.isfinite(result.features).all()
    assert np.bincount(result.target.astype(int)).tolist() == [37_155, 11_687]
    assert sorted(table.columns) == sorted(schema.columns)
    assert path.stat().st_size < 1_000_000
    assert "CC BY 4.0" in path.with_suffix(".txt").read_text()
    assert min(seconds) < 1
    assert np.array_equal(encoder.encode(Table.open(path, schema).frame()).features, result.features)
