"""What one record holds never changes how another is read: texts, vectors, dates, truth values, many categories."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet

from dpilot.data.encoder import Encoder
from dpilot.data.files import Table
from dpilot.data.schema import Schema
from dpilot.fit.table import fit_table
from dpilot.tune import AutoClassifier
from tests.contracts.test_readers import LABELS, SIZE, X, every_cell, neighbours, promoted, unmoved
from tests.data.pictures import folder_of

RNG = np.random.default_rng(1)
WORDS = np.array(["good", "bad", "film", "12", "caf\u00e9", "2020-01-01", "1.0"])
DAYS = np.datetime64("2020-01-01") + RNG.integers(0, 700, SIZE)
SCHEMA = Schema.from_dict(
    {
        "columns": {
            "note": {"type": "text", "features": 32},
            "count": {"type": "text", "features": 16},
            "day": {"type": "date", "range": ["2020-01-01", "2022-01-01"]},
            "hour": {"type": "datetime", "range": ["2020-01-01", "2022-01-01"]},
            "written": {"type": "datetime", "range": ["2020-01-01", "2022-01-01"]},
            "flag": {"type": "boolean"},
            "city": {"type": "categorical", "levels": "hash:32"},
            "code": {"type": "categorical", "levels": "hash:32"},
            "size": {"type": "categorical", "categories": ["0", "1", "2"], "ordered": True, "outside": "indicator"},
            "outcome": {"type": "boolean", "role": "target"},
        },
        "missing_values": ["", "-9"],
    }
)
TABLE: dict[str, Any] = {
    "note": np.array([" ".join(RNG.choice(WORDS, 1 + place % 4)) for place in range(SIZE)]),
    "count": RNG.integers(5, size=SIZE),
    "day": DAYS,
    "hour": DAYS.astype("M8[s]") + RNG.integers(0, 86_400, SIZE),
    "written": (DAYS.astype("M8[s]") + RNG.integers(0, 86_400, SIZE)).astype(str),
    "flag": RNG.random(SIZE) > 0.5,
    "city": np.array([f"city {each}" for each in RNG.integers(100, size=SIZE)]),
    "code": RNG.integers(1000, size=SIZE),
    "size": RNG.integers(3, size=SIZE).astype(float),
    "outcome": LABELS,
}
VECTORS = RNG.normal(size=(SIZE, 3))
VECTOR_SCHEMA = Schema.from_dict(
    {
        "columns": {
            "v": {"type": "vector", "width": 3},
            "outcome": {"type": "categorical", "categories": ["0", "1"], "role": "target"},
        }
    }
)


def encoded(name: str, column: Any) -> Any:
    """One column as a model sees it; the target's codes."""
    if name == "outcome":
        read = Encoder(Schema({each: SCHEMA.columns[each] for each in ("flag", name)}, SCHEMA.missing_values))
        return read.encode({"flag": [True] * len(column), name: column}).target
    return Encoder(Schema({name: SCHEMA.columns[name]}, SCHEMA.missing_values)).encode({name: column}).features


EXPECTED = {name: encoded(name, column) for name, column in TABLE.items()}


def without(name: str) -> dict[str, Any]:
    return {other: np.append(values, values[-1:]) for other, values in TABLE.items() if other != name}


@every_cell
@pytest.mark.parametrize("name", TABLE)
def test_a_declared_column_is_read_cell_by_cell(name, cell):
    assert np.isfinite(EXPECTED[name]).all()
    for container, column in neighbours(TABLE[name], cell).items():
        assert np.array_equal(encoded(name, column)[:SIZE], EXPECTED[name]), container


@every_cell
def test_a_row_of_parquet_changes_no_other(cell, tmp_path):
    for name in ("note", "flag", "code", "city", "written"):
        column = promoted(TABLE[name], cell)
        if column is None or pa.types.is_nested(column.type):
            continue
        parquet.write_table(pa.table({**without(name), name: column}), tmp_path / "t.parquet")
        (frame,) = Table.open(tmp_path / "t.parquet", SCHEMA).frames()
        assert np.array_equal(encoded(name, frame[name])[:SIZE], EXPECTED[name]), name


ODD: dict[str, Any] = {
    "another": [1.0, 2.0, 3.0],
    "shorter": [1.0],
    "longer": [1.0] * 5,
    "empty": [],
    "nothing": None,
    "not a number": [np.nan, 1.0, 2.0],
    "infinite": [np.inf, 1.0, 2.0],
    "a text inside": ["x", 1.0, 2.0],
    "complex": [1j, 1.0, 2.0],
    "nested": [[1.0], [2.0], [3.0]],
    "whole numbers": [1, 2, 3],
    "huge": [10**400, 1, 2],
    "a number": 1.0,
    "a text": "x",
    "an array": np.ones((3, 1)),
}
every_odd = pytest.mark.parametrize("odd", ODD.values(), ids=list(ODD))


def vector_neighbours(cell: Any) -> dict[str, Any]:
    """The vectors and one cell more, in every container that can hold both."""
    rows = VECTORS.tolist()
    made: dict[str, Any] = {
        "list": [*rows, cell],
        "objects": np.fromiter([*rows, cell], dtype=object),
        "pandas": pd.concat([pd.Series(list(VECTORS)), pd.Series([cell], dtype=object)], ignore_index=True),
    }
    for name, join in (
        ("numpy", lambda: np.concatenate([VECTORS, np.array([cell])])),
        ("polars", lambda: pl.concat([pl.Series("v", rows), pl.Series("v", [cell])])),
        ("polars relaxed", lambda: pl.concat(
            [pl.DataFrame({"v": rows}), pl.DataFrame({"v": [cell]})], how="vertical_relaxed")["v"]),
        ("arrow", lambda: pa.concat_tables(
            [pa.table({"v": rows}), pa.table({"v": [cell]})], promote_options="permissive")["v"]),
    ):  # fmt: skip
        try:
            made[name] = join()
        except Exception:  # no such neighbour: the library joins no two such types
            continue
    return {name: each for name, each in made.items() if getattr(each, "ndim", 1) <= 2}


@every_odd
def test_a_vector_of_another_kind_changes_no_other(odd):
    expected = Encoder(VECTOR_SCHEMA).encode({"v": VECTORS, "outcome": LABELS}).features
    assert np.isfinite(expected).all()
    found = vector_neighbours(odd)
    assert len(found) >= 3
    for name, column in found.items():
        rows = Encoder(VECTOR_SCHEMA).encode({"v": column, "outcome": np.append(LABELS, 1)}).features
        assert np.array_equal(rows[:SIZE], expected), name


PICTURE_SCHEMA = Schema.from_dict(
    {"columns": {"file": {"type": "image", "size": [8, 8], "folder": "pictures", "backbone": "pixels"}}}
)


@every_cell
def test_a_name_of_a_picture_is_read_cell_by_cell(cell, tmp_path_factory, monkeypatch):
    home = tmp_path_factory.getbasetemp()
    if not (home / "pictures").exists():
        folder_of(home / "pictures", SIZE // 2)
    monkeypatch.chdir(home)
    names = np.array(sorted(str(each.relative_to(home / "pictures")) for each in home.glob("pictures/*/*")))
    expected = Encoder(PICTURE_SCHEMA).encode_features({"file": names})
    assert np.isfinite(expected).all()
    for container, column in neighbours(names, cell).items():
        found = Encoder(PICTURE_SCHEMA).encode_features({"file": column})
        assert np.array_equal(found[: len(names)], expected), container


# whole runs, replayed


def classifier(schema):
    def run(data):
        made = AutoClassifier(epsilon=5.0, size=SIZE, epochs=8, schema=schema).fit(data)
        return made.coef_, list(made.metrics_), made.privacy_.spent

    return run


def network(data):
    made = fit_table(data, SCHEMA, epsilon=5.0, delta=1e-5, size=SIZE, epochs=1, model="logistic")
    return made.predictor.state()[1], made.metrics


ODD_CELLS = {"note": "x" * 20_000, "count": "x", "day": "x", "flag": 2j, "city": None, "code": 10**400, "size": "?"}


@pytest.mark.parametrize("name", ODD_CELLS)
def test_a_table_of_all_types_moves_only_by_its_own_record(name):
    column = np.fromiter([*TABLE[name].tolist(), ODD_CELLS[name]], dtype=object)
    unmoved(classifier(SCHEMA), pd.DataFrame(TABLE), pd.DataFrame({**without(name), name: column}))


@pytest.mark.slow
def test_a_network_of_all_types_moves_only_by_its_own_record():
    more = {**without("note"), "note": np.append(TABLE["note"], "something else")}
    unmoved(network, pd.DataFrame(TABLE), pd.DataFrame(more))


@pytest.mark.parametrize("odd", ["another", "longer", "not a number", "nothing", "a text"])
def test_vectors_move_only_by_their_own_record(odd):
    base = pd.DataFrame({"v": list(VECTORS), "outcome": LABELS})
    more = pd.DataFrame({"v": [*VECTORS, ODD[odd]], "outcome": np.append(LABELS, 1)})
    unmoved(classifier(VECTOR_SCHEMA), base, more)


def unit_rows(data):
    made = AutoClassifier(epsilon=5.0, size=SIZE, epochs=8, classes=[0, 1], rows="unit").fit(*data)
    return made.coef_, list(made.metrics_), made.privacy_.spent


ROW = np.array([[1.0, 2.0]])


@pytest.mark.parametrize(
    "row", [ROW, ROW * 1j, np.array([["x", None]], dtype=object), ROW * np.nan, ROW * 1e300, 0 * ROW], ids=str
)
def test_rows_of_unit_length_move_only_by_their_own_record(row):
    unmoved(unit_rows, (X, LABELS), (np.concatenate([X, row]), np.append(LABELS, 1)))
