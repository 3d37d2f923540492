"""Texts, vectors, dates, truth values and many categories: what a cell becomes, and that no cell raises."""

from __future__ import annotations

import datetime
import tempfile
import zoneinfo
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from dpilot.data import values
from dpilot.data.column import Column
from dpilot.data.column_types import CellState
from dpilot.data.encoder import Encoder
from dpilot.data.explain import explain_column
from dpilot.data.files import Table
from dpilot.data.invented import invent_rows
from dpilot.data.schema import Schema
from dpilot.data.states import record_states
from dpilot.errors import InvalidInput
from tests.data.raising import raising_cells
from tests.data.strategies import cells
from tests.encoders import save_encoder

ENCODER = str(save_encoder(Path(tempfile.mkdtemp(prefix="dpilot-encoder-"))))
COLUMNS: dict[str, dict[str, Any]] = {
    "text": {"type": "text", "features": 64},
    "encoder": {"type": "text", "encoder": ENCODER, "features": 8, "length": 12},
    "vector": {"type": "vector", "width": 3},
    "date": {"type": "date", "range": ["2020-01-01", "2022-01-01"]},
    "datetime": {"type": "datetime", "range": ["2020-01-01", "2022-01-01"], "outside": "clamp"},
    "boolean": {"type": "boolean"},
    "hashed": {"type": "categorical", "levels": "hash:16"},
    "ordered": {"type": "categorical", "categories": ["S", "M", "L"], "ordered": True},
    "listed": {"type": "categorical", "categories": ["a", "b"], "outside": "indicator"},
}
every_type = pytest.mark.parametrize("kind", COLUMNS)


def schema_of(kind: str, **more: Any) -> Schema:
    return Schema.from_dict({"columns": {"x": {**COLUMNS[kind], **more}}})


def encode(kind: str, cells: Any, **more: Any) -> Any:
    return Encoder(schema_of(kind, **more)).encode({"x": cells}).features


def states(kind: str, cells: Any, **more: Any) -> list[str]:
    found = record_states(schema_of(kind, **more), {"x": cells}).columns["x"]
    return [CellState(each).name for each in found]


@every_type
def test_a_schema_is_written_and_read_back(kind: str) -> None:
    schema = schema_of(kind)
    assert Schema.parse(schema.to_toml()) == schema
    assert Schema.parse(schema.to_json(), form="json") == schema
    assert schema.to_dict()["columns"]["x"] == COLUMNS[kind]
    assert "x: a feature;" in explain_column(schema.columns["x"]).sentence
    assert not any(row.unexpected for row in invent_rows(schema))


@every_type
@settings(deadline=None)  # an encoder takes its time
@given(st.lists(st.one_of(cells, st.text(), st.binary(), st.lists(st.floats(), max_size=4)), max_size=5))
def test_no_cell_raises_and_each_is_read_by_itself(kind: str, drawn: list[Any]) -> None:
    together = encode(kind, drawn)
    assert together.dtype == np.float32
    alone = [encode(kind, [cell]) for cell in drawn]
    assert np.array_equal(together, np.concatenate([encode(kind, []), *alone]), equal_nan=True)
    assert (np.isnan(together) | (np.abs(together) <= 1)).all()
    usable = record_states(schema_of(kind), {"x": drawn}).usable
    assert np.array_equal(np.isfinite(together).all(axis=1), usable)


@every_type
@pytest.mark.parametrize("problem", [SystemExit, ValueError])
def test_an_object_that_raises_is_read_by_itself(kind: str, problem: type[BaseException]) -> None:
    assert len(encode(kind, [*raising_cells(problem).values()])) == 6


class Stubborn(str):
    """A text that stays of its own class, and raises when it is compared."""

    __slots__ = ()

    def __str__(self) -> str:
        return self

    def strip(self, *_: Any) -> str:
        return self

    def __hash__(self) -> int:
        raise ValueError

    __eq__ = casefold = encode = __hash__  # type: ignore[assignment]


class Lying(np.ndarray[Any, Any]):
    """An array that says another shape than it has."""

    shape = (3,)  # type: ignore[assignment]


@every_type
def test_a_class_of_its_own_is_read_by_itself(kind: str) -> None:
    masked = np.ma.array([1.0, 2.0, 3.0], mask=[False, True, False])
    odd = [Stubborn("a"), np.ones(5).view(Lying), masked]
    rows = encode(kind, [*odd, None])
    assert np.isnan(rows[:3]).all() or kind == "listed"  # where what is unknown has a column
    assert np.isfinite(rows[3]).all()


@every_type
def test_missing_is_a_value_of_its_own_or_null(kind: str) -> None:
    for cell in (None, float("nan"), pd.NaT, pd.NA, "", " "):
        row = encode(kind, [cell])[0]
        place = Encoder(schema_of(kind)).names.index("x is missing")
        assert row[place] == 1
        assert np.count_nonzero(row) == 1
        assert np.isnan(encode(kind, [cell], missing="null")).all()


# text


def test_a_text_is_a_row_of_unit_length_whose_words_count() -> None:
    rows = encode("text", ["The film was good", "the FILM was good", "the film was bad", "..."])
    assert np.allclose(np.linalg.norm(rows[:3], axis=1), 1)
    assert np.array_equal(rows[0], rows[1])
    assert not np.array_equal(rows[0], rows[2])
    assert rows[0] @ rows[2] > 0.5


def test_what_is_beyond_the_length_is_cut() -> None:
    texts = ["good film " * 10, "good film " * 10 + "bad"]
    assert not np.array_equal(*encode("text", texts))
    assert np.array_equal(*encode("text", texts, length=100))


def test_bad_encodings_and_what_is_no_text_make_the_record_null() -> None:
    found = states("text", ["half a character \ud800", b"caf\xe9", ["a"], {}, b"bytes", 5, "good"])
    assert found == ["UNREADABLE"] * 4 + ["FINE"] * 3
    assert np.array_equal(encode("text", [5, 5.0, "5", "5.0"]), np.tile(encode("text", ["5"]), (4, 1)))


def test_several_texts_stand_beside_numbers() -> None:
    declared = {"a": COLUMNS["text"], "b": {"type": "text", "features": 16}, "n": {"type": "numeric", "bounds": [0, 1]}}
    encoder = Encoder(Schema.from_dict({"columns": declared}))
    assert encoder.width == 65 + 17 + 2
    rows = encoder.encode({"a": ["one", "two"], "b": ["two", None], "n": [0, 1]}).features
    assert rows[:, 82].tolist() == [-1.0, 1.0]
    assert not rows[1, encoder.places["b"]][:-1].any()


# vectors

ROWS = [[3.0, 4.0, 0.0], [0.0, 0.0, 0.0], [1e200, 1e200, 0.0], [1e-200, 0.0, 0.0]]
UNIT = np.array([[0.6, 0.8, 0.0], [0.0, 0.0, 0.0], [0.5**0.5, 0.5**0.5, 0.0], [1.0, 0.0, 0.0]])


@pytest.mark.parametrize(
    "make",
    [
        lambda: ROWS,
        lambda: np.array(ROWS),
        lambda: np.array(ROWS, dtype=object),
        lambda: np.array(ROWS, dtype=complex),
        lambda: pd.Series(ROWS),
        lambda: pd.Series(list(np.array(ROWS))),
        lambda: pl.Series(ROWS),
        lambda: pl.Series(ROWS, dtype=pl.Array(pl.Float64, 3)),
        lambda: pa.array(ROWS),
        lambda: pa.chunked_array([ROWS[:1], ROWS[1:]]),
        lambda: pa.array(ROWS, pa.list_(pa.float64(), 3)),
        lambda: [str(row) for row in ROWS],
        lambda: [tuple(row) for row in ROWS],
    ],
)
def test_a_vector_is_scaled_to_unit_length_in_every_container(make: Any) -> None:
    assert np.allclose(encode("vector", make())[:, :3], UNIT)


def test_a_vector_of_another_length_or_without_numbers_is_null() -> None:
    wrong = [[1.0], [1.0] * 4, [1.0, np.nan, 0.0], [1.0, "x", 0.0], "x", "[1, 2]", 3.0, {}, [[1.0], 2, 3], [1, None, 2]]
    assert states("vector", wrong) == ["UNREADABLE"] * len(wrong)
    assert states("vector", np.ones((2, 4))) == ["UNREADABLE"] * 2
    lists = pa.array([[1.0, 2.0, 2.0], None, [1.0, None, 2.0], [1.0]])
    assert states("vector", lists) == states("vector", lists[:0].to_pylist() + lists.to_pylist())
    assert states("vector", lists) == ["FINE", "MISSING", "UNREADABLE", "UNREADABLE"]
    assert states("vector", lists[1:]) == ["MISSING", "UNREADABLE", "UNREADABLE"]


def members(columns: Any, names: Any = ("e0", "e1", "e2", "y"), **more: Any) -> Schema:
    declared = {"v": {"type": "vector", "columns": columns, **more}, "y": {"type": "boolean", "role": "target"}}
    return Schema.from_dict({"columns": declared}).resolve(names)


def as_table(rows: Any, make: Any = pd.DataFrame) -> Any:
    return make({"y": [True] * len(rows), **{f"e{place}": each for place, each in enumerate(zip(*rows, strict=True))}})


@pytest.mark.parametrize("columns", ["e0..e2", "e*", ["e0", "e1", "e2"]])
def test_a_range_of_columns_is_a_vector(columns: Any, tmp_path: Path) -> None:
    schema = members(columns)
    assert schema.columns["v"].sources == ("e0", "e1", "e2")
    assert schema == Schema.from_dict(schema.to_dict()) == Schema.parse(schema.to_toml())
    assert schema == schema.resolve(["y", "e2", "e1", "e0"])  # the names are known by now, whatever their order
    whole = Encoder(schema.inputs_only())
    for make in (pd.DataFrame, pl.DataFrame, pa.table, dict):
        assert np.allclose(whole.encode_features(as_table(ROWS, make))[:, :3], UNIT)
    path = tmp_path / "t.csv"
    as_table(ROWS).to_csv(path, index=False)
    (frame,) = Table.open(path, schema).frames()
    assert np.allclose(Encoder(schema).encode(frame).features[:, :3], UNIT)


def test_one_cell_of_a_range_makes_its_own_record_null_and_moves_no_other() -> None:
    schema = members("e0..e2")
    for cell in (np.nan, None, "", "x", np.inf, [1.0], 1j, object(), b"\xff", 10**400):
        table = as_table([*ROWS, [1.0, cell, 2.0], [None] * 3])
        found = record_states(schema, table).columns["v"].tolist()
        assert [CellState(each).name for each in found] == ["FINE"] * 4 + ["UNREADABLE", "MISSING"], cell
        assert np.allclose(Encoder(schema).encode(table).features[:4, :3], UNIT)
    assert np.allclose(Encoder(schema).encode(as_table([*ROWS, ["3", True, 0]])).features[:4, :3], UNIT)


@pytest.mark.parametrize(
    ("columns", "more", "message"),
    [
        ("e0..e9", {}, r"\['e0\.\.e9'\] of the schema are not in"),
        ("z*", {}, r"\['z\*'\] of the schema are not in"),
        ("e0", {}, "columns are 'e0': expected"),
        (["e0", "e0"], {}, "names of different columns"),
        (["e0", "y"], {}, "have 'y', which has an entry of its own"),
        (["e0", "e9"], {}, r"\['e9'\] of the schema are not in"),
        ("e*", {"width": 4}, "width is 4, but it has 3 columns"),
        ("e*", {"file": "x.npy"}, "beside a file"),
        ("e0..e1", {}, r"columns \['e2'\] of the table have no entry"),
    ],
)
def test_a_range_that_is_no_vector_is_refused_by_names_alone(columns: Any, more: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        members(columns, **more)


def test_an_entry_of_its_own_wins_over_a_range_and_two_places_are_refused() -> None:
    target = {"type": "boolean", "role": "target"}
    declared = {"v": {"type": "vector", "columns": "a..c"}, "b": target}
    assert Schema.from_dict({"columns": declared}).resolve(["a", "b", "c"]).columns["v"].sources == ("a", "c")
    with pytest.raises(InvalidInput, match=r"is meant by the wildcards 'c.' and 'v'"):
        Schema.from_dict({"columns": {**declared, "c*": {"type": "numeric", "bounds": [0, 1]}}}).resolve(
            ["a", "b", "c"]
        )
    with pytest.raises(InvalidInput, match="only vector columns have it"):
        Column("x", "text", columns="a..c")


def test_only_vectors_may_be_lists_and_arrays_of_two_dimensions(tmp_path: Path) -> None:
    schema = Schema.from_dict({"columns": {"x": {"type": "numeric", "bounds": [0, 1]}}})
    with pytest.raises(InvalidInput, match="array of 2 dimensions"):
        Encoder(schema).encode({"x": np.ones((2, 2))})
    parquet.write_table(pa.table({"x": pa.array(ROWS)}), tmp_path / "t.parquet")
    with pytest.raises(InvalidInput, match="lists or records"):
        Table.open(tmp_path / "t.parquet", schema)
    found = [Encoder(schema_of("vector")).encode(each) for each in Table.open(
        tmp_path / "t.parquet", schema_of("vector")).frames(3)]  # fmt: skip
    assert np.allclose(np.concatenate([each.features[:, :3] for each in found]), UNIT)


# dates


def test_a_day_is_its_place_and_its_cycles() -> None:
    (row,) = encode("date", ["2020-07-01"])
    month, weekday = 2 * np.pi * 6 / 12, 2 * np.pi * 2 / 7  # a Wednesday in July
    place = 2 * 182 / 731 - 1
    cycles = [f(x) * 0.5**0.5 for x in (month, weekday) for f in (np.sin, np.cos)]
    assert np.allclose(row, [place, *cycles, 0], atol=1e-6)
    hours = encode("datetime", ["2020-07-01 06:00"])[0][5:7]
    assert np.allclose(hours, [0.5**0.5, 0], atol=1e-6)


def test_a_moment_is_the_same_in_every_type() -> None:
    berlin = datetime.datetime(2021, 5, 4, 5, 4, 5, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))
    same: list[Any] = [
        "2021-05-04 03:04:05", "2021-05-04T03:04:05.000000000", " 2021-05-04T03:04:05Z ", "2021-05-04T05:04:05+02:00",
        b"2021-05-04T03:04:05", datetime.datetime(2021, 5, 4, 3, 4, 5), berlin, pd.Timestamp("2021-05-04 03:04:05"),
        pd.Timestamp(berlin), np.datetime64("2021-05-04T03:04:05"), np.datetime64("2021-05-04T03:04:05", "ns"),
    ]  # fmt: skip
    rows = encode("datetime", same)
    assert np.array_equal(rows, np.tile(rows[:1], (len(same), 1)))
    for typed in (pd.Series(pd.to_datetime(same[:1])), np.array(same[:1], "M8[ms]"), pl.Series(same[5:6])):
        assert np.array_equal(encode("datetime", typed), rows[:1])
    days = encode("date", [*same, "2021-05-04", datetime.date(2021, 5, 4)])
    assert np.array_equal(days, np.tile(days[:1], (len(days), 1)))


def test_what_is_no_day_of_the_range_is_null_or_clamped() -> None:
    cells = ["2019-12-31", "2022-01-02", 18262, "20200101", "1577836800", "2020-02-30", datetime.time(3), "2020", "x"]
    assert states("date", cells) == ["OUTSIDE"] * 2 + ["UNREADABLE"] * 7
    assert np.isnan(encode("date", cells)).all()
    assert encode("datetime", cells[:2])[:, 0].tolist() == [-1.0, 1.0]
    assert values.moment("2020-01") == values.moment("2020-01-01")


@pytest.mark.parametrize(
    "ends", [None, [], ["2020-01-01"], ["2021-01-01", "2020-01-01"], ["2020-01-01", "2020-01-01"], [0, 1], "2020"]
)
def test_a_range_is_two_days_the_first_one_first(ends: Any) -> None:
    with pytest.raises(InvalidInput, match="range is"):
        Column("x", "date", range=ends)


def test_a_range_may_be_written_as_days_in_toml() -> None:
    schema = Schema.parse('[columns.x]\ntype = "date"\nrange = [2020-01-01, 2022-01-01]')
    assert schema == Schema.from_dict({"columns": {"x": COLUMNS["date"]}})


# truth values and categories


def test_truth_values_in_every_spelling() -> None:
    true, false = [True, 1, 1.0, "True", "TRUE", "t", "yes", "Y", "1", "on"], [False, 0, "no", "F", "false", "0.0"]
    assert np.array_equal(encode("boolean", true)[:, :2], [[0, 1]] * len(true))
    assert np.array_equal(encode("boolean", false)[:, :2], [[1, 0]] * len(false))
    assert states("boolean", ["maybe", 2, [True]]) == ["UNKNOWN"] * 3
    target = Schema.from_dict({"columns": {"x": COLUMNS["boolean"], "t": {"type": "boolean", "role": "target"}}})
    assert Encoder(target).encode({"x": [True, 0], "t": ["yes", "no"]}).target.tolist() == [1.0, 0.0]
    assert target.target.categories == ("False", "True")


def test_hashed_levels_are_one_column_by_a_public_hash() -> None:
    rows = encode("hashed", [1, 1.0, "1", "Ulm", " Ulm", "a" * 1000, 2**60, [1]])
    assert rows[:6].sum(axis=1).tolist() == [1.0] * 6
    assert np.array_equal(rows[0], rows[1])
    assert np.array_equal(rows[0], rows[2])
    assert np.array_equal(rows[3], rows[4])
    assert np.isnan(rows[6:]).all()
    many = encode("hashed", [f"id {i}" for i in range(4000)])[:, :16].sum(axis=0)
    assert (np.abs(many - 250) < 80).all()


def test_an_unknown_category_may_have_a_column_of_its_own() -> None:
    assert Encoder(schema_of("listed")).names == ("x=a", "x=b", "x is missing", "x is unknown")
    assert encode("listed", ["a", None, "c"]).tolist() == [[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]


def test_ordered_categories_have_a_place() -> None:
    assert encode("ordered", ["S", "M", "L"])[:, 3].tolist() == [-1.0, 0.0, 1.0]


def test_levels_of_a_file_beside_the_schema(tmp_path: Path) -> None:
    (tmp_path / "cities.txt").write_text("Ulm\nBern\n\nUlm\n")
    (tmp_path / "s.toml").write_text('[columns.x]\ntype = "categorical"\nlevels = "cities.txt"')
    column = Schema.load(tmp_path / "s.toml").columns["x"]
    assert column.categories == ("Ulm", "Bern")
    assert column.outside == "indicator"
    assert column.levels is None
    with pytest.raises(InvalidInput, match=r"levels are 'towns\.txt'"):
        Schema.parse('[columns.x]\ntype = "categorical"\nlevels = "towns.txt"', folder=tmp_path)
    named = Schema.load(tmp_path / "s.toml").with_roles(target="x")
    assert named.target.outside == "null"


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"type": "text", "features": 7}, "features are 7"),
        ({"type": "text", "features": True}, "features are True"),
        ({"type": "text", "length": 0}, "length is 0"),
        ({"type": "text", "encoder": "minilmm"}, "expected 'minilm', or the folder of a Hugging Face model, and"),
        ({"type": "text", "encoder": "minilm", "features": 100}, "features are 100, but the encoder gives 384"),
        ({"type": "text", "encoder": "minilm", "length": 2}, "length is 2"),
        ({"type": "text", "encoder": 3}, "encoder is 3"),
        ({"type": "text", "fingerprint": "ab"}, "without an encoder"),
        ({"type": "boolean", "encoder": "minilm"}, "only text columns have it"),
        ({"type": "text", "bounds": [0, 1]}, "only numeric columns have bounds"),
        ({"type": "vector"}, "width is missing"),
        ({"type": "vector", "width": 0}, "width is 0"),
        ({"type": "numeric", "bounds": [0, 1], "width": 3}, "only vector columns have it"),
        ({"type": "numeric", "bounds": [0, 1], "range": ["2020-01-01", "2021-01-01"]}, "only date and datetime"),
        ({"type": "categorical", "categories": ["a"], "levels": "hash:8"}, "levels and categories"),
        ({"type": "categorical", "levels": "hash:1"}, "levels are 'hash:1'"),
        ({"type": "categorical", "levels": "hash:8", "ordered": True}, "have no order"),
        ({"type": "categorical", "categories": ["a"], "ordered": "yes"}, "ordered is 'yes'"),
        ({"type": "categorical", "categories": ["a", "b"], "role": "target", "outside": "indicator"}, "only be null"),
        ({"type": "text", "role": "target"}, "target and text"),
        ({"type": "categorical", "levels": "hash:8", "role": "target"}, "target and categorical"),
        ({"type": "date", "range": ["2020-01-01", "2021-01-01"], "role": "protected"}, "protected and date"),
        ({"type": "boolean", "categories": ["no", "yes"]}, "only categorical columns have them"),
        ({"type": "text", "outside": "clamp"}, "can be clamped"),
    ],
)
def test_contradictions_are_refused(declared: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Column.from_dict("x", declared)
