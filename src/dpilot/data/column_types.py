"""The types a column can have, in one table: how its cells are read, encoded and put into words.

A new type is a class in ``data/types`` and a line in ``TYPES``; schema, encoder, checks and explanations ask the table.

>>> from dpilot.data.column import Column
>>> import numpy as np
>>> age = Column("age", "numeric", bounds=(0, 100))
>>> reading = TYPES["numeric"].read(np.array(["50", "", "200", "old"], dtype=object), age, ("",))
>>> [CellState(each).name for each in reading.states]
['FINE', 'MISSING', 'OUTSIDE', 'UNREADABLE']
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.random import Generator

from dpilot.data.types.base import BUY, NULL, Block, CellState, ColumnType, Embedding, Reading, States
from dpilot.data.types.categorical import BOOLEAN, Bought, Categorical, Hashed
from dpilot.data.types.image import Image
from dpilot.data.types.numeric import Numeric
from dpilot.data.types.text import Text
from dpilot.data.types.times import Times
from dpilot.data.types.vector import Vector

if TYPE_CHECKING:
    from dpilot.data.column import Column

__all__ = [
    "NULL",
    "TYPES",
    "Block",
    "CellState",
    "ColumnType",
    "Embedding",
    "Reading",
    "States",
    "draw_cells",
    "piece_rows",
    "type_of",
]

TYPES: Final[Mapping[str, ColumnType]] = {
    "numeric": Numeric(),
    "categorical": Categorical(),
    "boolean": BOOLEAN,
    "date": Times(has_hours=False),
    "datetime": Times(has_hours=True),
    "text": Text(),
    "vector": Vector(),
    "image": Image(),
}
_HASHED: Final = Hashed()
_BOUGHT: Final = Bought()
_CELLS: Final = 1 << 22  # cells and what they become, held at a time: a wide table takes no more than a long one


def type_of(column: Column) -> ColumnType:
    """The type of a column that is used; categories that nobody lists are read otherwise than those that are."""
    if column.levels is None:
        return TYPES[column.type or ""]
    return _BOUGHT if column.levels == BUY else _HASHED


def draw_cells(column: Column, rows: int, rng: Generator) -> dict[str, Any]:
    """Made-up cells, all fine, by the columns of a table that they stand in: from the declaration alone."""
    cells = type_of(column).draw(column, rows, rng)
    apart = [cells] if column.columns is None else np.stack(list(cells), axis=1)
    return dict(zip(column.sources, apart, strict=True))


def piece_rows(columns: Iterable[Column], others: int = 0) -> int:
    """How many records of these columns, and ``others`` of one cell each, are read at a time: by declaration alone."""
    width = others + sum(len(type_of(column).names(column)) for column in columns)
    return max(_CELLS // max(width, 1), 1)
