"""What becomes of records by the schema: the state of every cell, and which records can be used at all.

>>> from dpilot.data.schema import Column, Schema
>>> schema = Schema({"age": Column("age", "numeric", bounds=(0, 100)),
...                  "kind": Column("kind", "categorical", categories=("a", "b"))})
>>> found = record_states(schema, {"age": [50, None, 200], "kind": ["a", "b", "c"]})
>>> found.usable.tolist(), found.columns["kind"].tolist()
([True, True, False], [0, 0, 3])
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpilot.data.column import Column
from dpilot.data.column_types import CellState, Reading, States, piece_rows, type_of
from dpilot.data.frames import Frame
from dpilot.data.schema import Schema

__all__ = ["RecordStates", "null_cells", "read_column", "read_pieces", "record_states"]


@dataclass(frozen=True, slots=True)
class RecordStates:
    """The ``State`` of every cell of the columns that are used, and whether each record is more than the null record.

    Sensitive: exact, and of each record. What is released of it is noisy counts, or counts of a public table.
    """

    columns: Mapping[str, States]
    usable: NDArray[np.bool_]

    def count(self, name: str) -> NDArray[np.int64]:
        """How many cells of one column are in each state, by its number."""
        return np.bincount(self.columns[name], minlength=len(CellState))


def record_states(schema: Schema, frame: Any) -> RecordStates:
    """The states of the records of ``frame``: a pandas or polars frame, an arrow table, or a mapping of columns.

    Guarantee:
        Every state is a function of one cell and of the schema; a record is usable if and only if ``Encoder.encode``
        gives more than the null record for it. No value raises.

    Edge cases:
        Where bounds are still to be bought, no number is outside them.
    """
    table = Frame.of(frame)
    usable = np.ones(table.length, dtype=np.bool_)
    states: dict[str, States] = {}
    for column in schema.used:
        states[column.name] = np.concatenate([each.states for _, each in read_pieces(column, table, schema)])
        usable &= ~null_cells(column, states[column.name])
    return RecordStates(states, usable)


def read_column(column: Column, table: Frame, schema: Schema) -> Reading:
    """The cells of one column of a table, as its type reads them."""
    return type_of(column).read(table.cells(column), column, schema.missing_values)


def read_pieces(column: Column, table: Frame, schema: Schema) -> Iterator[tuple[slice, Reading]]:
    """The same some cells at a time, and where they are: what a type reads of many pictures is never held at once."""
    cells, rows = table.cells(column), piece_rows([column])
    for start in range(0, max(len(cells), 1), rows):
        piece = slice(start, start + rows)
        yield piece, type_of(column).read(cells[piece], column, schema.missing_values)


def null_cells(column: Column, states: States) -> NDArray[np.bool_]:
    """Where a cell makes its whole record null."""
    return np.asarray(np.isin(states, column.null_states))
