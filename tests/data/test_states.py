"""The states of cells: they say what the encoder makes of every record, and each is its own cell's alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dpilot.data.cells import UNREADABLE, objects, plain
from dpilot.data.column import Column
from dpilot.data.column_types import TYPES, CellState, type_of
from dpilot.data.encoder import Encoder
from dpilot.data.schema import Schema
from dpilot.data.states import record_states
from tests.data.strategies import schemas, tables


@st.composite
def described_tables(draw: st.DrawFn) -> tuple[Schema, dict[str, list[Any]]]:
    schema = draw(schemas())
    return schema, draw(tables(schema))


@given(described_tables())
def test_a_record_is_usable_where_the_encoder_gives_more_than_the_null_record(
    made: tuple[Schema, dict[str, list[Any]]],
) -> None:
    schema, table = made
    usable = record_states(schema, table).usable
    encoded = Encoder(schema).encode(table)
    assert np.array_equal(usable, ~np.isnan(encoded.features).any(axis=1))
    assert np.array_equal(usable, ~np.isnan(encoded.features).all(axis=1))
    for part in (encoded.target, encoded.group):
        if part is not None:
            assert np.array_equal(usable, np.isfinite(np.atleast_2d(part.T)).all(axis=0))


@given(described_tables())
def test_a_state_is_that_of_its_own_record(made: tuple[Schema, dict[str, list[Any]]]) -> None:
    schema, table = made
    whole = record_states(schema, table)
    for place in range(len(whole.usable)):
        alone = record_states(schema, {name: cells[place : place + 1] for name, cells in table.items()})
        assert alone.usable[0] == whole.usable[place]
        assert all(alone.columns[name][0] == states[place] for name, states in whole.columns.items())


def test_every_state_has_its_cells() -> None:
    schema = Schema(
        {
            "x": Column("x", "numeric", bounds=(0, 1), outside="clamp"),
            "y": Column("y", "categorical", categories=("no", "yes"), role="target"),
        }
    )
    table = {"x": ["1", "", "2", "old", "0", UNREADABLE], "y": ["yes", "no", "no", "yes", "maybe", UNREADABLE]}
    found = record_states(schema, table)
    assert found.columns["x"].tolist() == [
        CellState.FINE,
        CellState.MISSING,
        CellState.OUTSIDE,
        *[4],
        CellState.FINE,
        CellState.UNREADABLE,
    ]
    assert found.columns["y"].tolist() == [*[CellState.FINE] * 4, CellState.UNKNOWN, CellState.UNREADABLE]
    assert found.usable.tolist() == [True, True, True, False, False, False]
    assert found.count("y").tolist() == [4, 0, 0, 1, 1]


def test_bounds_to_buy_leave_no_number_outside() -> None:
    schema = Schema({"x": Column("x", "numeric", bounds="buy")})
    assert record_states(schema, {"x": [-1e30, 0, "?", None]}).columns["x"].tolist() == [0, 0, 4, 1]


def test_several_protected_columns_are_encoded_side_by_side() -> None:
    columns = {name: Column(name, "categorical", categories=("a", "b"), role="protected") for name in "gh"}
    schema = Schema({"x": Column("x", "numeric", bounds=(0, 1)), **columns})
    group = Encoder(schema).encode({"x": [0, 1, 0], "g": ["a", "b", "a"], "h": ["b", "b", "?"]}).group
    assert group is not None
    assert np.array_equal(group, [[0, 1], [1, 1], [np.nan, np.nan]], equal_nan=True)


def test_every_type_of_the_table_reads_its_own_invented_cells() -> None:
    examples = [
        Column("x", "numeric", bounds=(0, 1)),
        Column("x", "categorical", categories=("a", "b")),
        Column("x", "categorical", levels="hash:8"),
        Column("x", "boolean"),
        Column("x", "date", range=("2020-01-01", "2021-01-01")),
        Column("x", "datetime", range=("2020-01-01", "2021-01-01")),
        Column("x", "text"),
        Column("x", "vector", width=3),
        Column("x", "image", size=(8, 8)),
    ]
    assert {column.type for column in examples} == set(TYPES)
    for column in examples:
        kind = type_of(column)
        cells = objects([*kind.invent(column).values(), *kind.draw(column, 1, np.random.default_rng(0))])
        reading = kind.read(cells, column, ("",))
        assert (reading.states == CellState.FINE).any()
        assert {state for state in reading.states.tolist() if state != CellState.FINE} <= set(kind.flaws(column))
        assert not kind.domain or getattr(column, kind.domain) is not None
        drawn = kind.read(plain(kind.draw(column, 20, np.random.default_rng(0))), column, ("",))
        assert (drawn.states == CellState.FINE).all()
        names = kind.names(column)
        assert len(names) == len(set(names)) == len(kind.lowest(column))
        block = np.zeros((20, len(names)), dtype=np.float32)
        kind.fill(block, drawn.values, column)
        assert (block >= kind.lowest(column)).all()
        assert (block <= 1).all()
        assert block.any(axis=1).all()
        if kind.is_unit:
            assert np.allclose(np.linalg.norm(block, axis=1), 1)
