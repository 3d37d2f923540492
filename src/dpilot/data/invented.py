"""A schema tried on invented records: what becomes of the values at its edges, without a table.

>>> from dpilot.data.schema import Column, Schema
>>> schema = Schema({"age": Column("age", "numeric", bounds=(0, 100), missing="null")})
>>> for row in invent_rows(schema):
...     print(row.what, "|", row.cell, "|", row.becomes)
the lower bound | 0 | age = -1
the upper bound | 100 | age = 1
below | -10 | the record is null
above | 110 | the record is null
no number | a text | the record is null
missing | | the record is null
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from dpilot.data.cells import Cells, objects
from dpilot.data.column import Column
from dpilot.data.column_types import NULL, CellState, type_of
from dpilot.data.schema import Schema

__all__ = ["InventedRow", "invent_rows"]

_DECLARED: Final = ("the lower bound", "the upper bound", "a number", "category", "a text", "a list", "a value")
_SHOWN: Final = 8  # numbers that a model sees of a cell, before they are counted


@dataclass(frozen=True, slots=True)
class InventedRow:
    """A cell of one column, in a record whose other cells are all fine, and what becomes of it."""

    column: str
    what: str
    cell: str | None
    state: str
    becomes: str
    null: bool

    @property
    def unexpected(self) -> bool:
        """Whether a value that the schema declares is not read as one."""
        return self.what.startswith(_DECLARED) and self.state != "fine"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


def invent_rows(schema: Schema) -> Iterator[InventedRow]:
    """Cells at the edges of every column that is used: its bounds, its categories, beyond them, and missing."""
    for column in schema.used:
        cells: dict[str, str | None] = {**type_of(column).invent(column), "missing": _missing_text(column, schema)}
        reading = type_of(column).read(objects(cells.values()), column, schema.missing_values)
        for place, ((what, cell), state) in enumerate(zip(cells.items(), reading.states.tolist(), strict=True)):
            null = state in column.null_states
            becomes = NULL if null else _encode(column, reading.values[place : place + 1], CellState(state))
            yield InventedRow(column.name, what, cell, CellState(state).name.lower(), becomes, null)


def _missing_text(column: Column, schema: Schema) -> str | None:
    """A text that a file would hold where the value is missing; None where every such text is a category."""
    taken = column.categories or ()
    return next((text for text in schema.missing_values if text not in taken), None)


def _encode(column: Column, value: Cells, state: CellState) -> str:
    """The numbers that a model sees of one cell, as far as they are not 0."""
    if column.role == "target" or (column.role == "protected" and not column.is_feature):
        if column.categories is not None:
            return f"{column.categories[int(value[0])]!r}"
        return f"{value[0]:.4g}" if column.type == "numeric" else f"{value[0]!r}, if it is bought"
    if column.bounds == "buy" and state != CellState.MISSING:
        return f"{column.name}, scaled by the bounds that are bought"
    if state == CellState.MISSING:
        return f"{column.name} is missing = 1"
    if state == CellState.UNKNOWN:
        return f"{column.name} is unknown = 1"
    kind = type_of(column)
    names = kind.names(column)
    block = np.zeros((1, len(names)), dtype=np.float32)
    kind.fill(block, value, column)
    if np.count_nonzero(block) > _SHOWN:
        return f"{np.count_nonzero(block):,} of {len(names):,} columns"
    shown = [f"{name} = {each:.4g}" for name, each in zip(names, block[0], strict=True) if each or len(names) == 1]
    return ", ".join(shown) or "nothing"
