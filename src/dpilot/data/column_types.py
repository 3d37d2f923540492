"""The types a column can have, in one table: how its cells are read, encoded and put into words.

A new type is a class here and a line in ``TYPES``; encoder, checks and explanations ask the table.

>>> from dpilot.data.column import Column
>>> age = Column("age", "numeric", bounds=(0, 100))
>>> reading = TYPES["numeric"].read(np.array(["50", "", "200", "old"], dtype=object), age, ("",))
>>> [CellState(each).name for each in reading.states]
['FINE', 'MISSING', 'OUTSIDE', 'UNREADABLE']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from dpilot._arrays import Floats
from dpilot.data import values
from dpilot.data.cells import UNREADABLE, Cells
from dpilot.data.reading import ABSENT, WRONG, codes, numbers

if TYPE_CHECKING:
    from dpilot.data.column import Column

__all__ = ["NULL", "TYPES", "CellState", "ColumnType", "Reading", "States", "type_of"]

States = NDArray[np.int8]
Block = NDArray[np.float32]

NULL: Final = "the record is null"
_SHOWN: Final = 8  # categories that a sentence lists


class CellState(IntEnum):
    """What one cell is to its column: the first can always be used, the last two never."""

    FINE = 0
    MISSING = 1
    OUTSIDE = 2
    """a number beyond the bounds"""
    UNKNOWN = 3
    """a value that is no declared category, or no declared class"""
    UNREADABLE = 4
    """no finite number where one is declared, or part of a line that is no record"""


@dataclass(frozen=True, slots=True)
class Reading:
    """The cells of one column: what each is worth, nan where it is worth nothing, and its ``State``.

    Numbers are scaled from their bounds to [-1, 1], those outside put on the nearest one (bounds that are still to be
    bought scale nothing); categories are their codes.
    """

    values: Floats
    states: States


class ColumnType(Protocol):
    """What a type of column does. ``domain`` is the key of a column that declares which values it can have.

    Guarantee:
        ``read`` looks at each cell by itself, and no cell raises.
    """

    @property
    def domain(self) -> str: ...

    @property
    def example(self) -> str: ...

    @property
    def has_groups(self) -> bool: ...

    def read(self, cells: Cells, column: Column, missing: Sequence[str], /) -> Reading: ...

    def names(self, column: Column, /) -> list[str]: ...

    def fill(self, block: Block, values: Floats, /) -> None: ...

    def describe(self, column: Column, /) -> str: ...

    def describe_outside(self, column: Column, /) -> str: ...

    def invent(self, column: Column, /) -> dict[str, str]: ...


class _Numeric:
    """Numbers between bounds: one encoded column, 2 (x - lower) / (upper - lower) - 1, and 0 where missing."""

    domain: Final = "bounds"
    example: Final = "[0, 100]"
    has_groups: Final = False

    def read(self, cells: Cells, column: Column, missing: Sequence[str]) -> Reading:
        read = numbers(cells, missing)
        states = np.zeros(read.shape, dtype=np.int8)
        states[np.isnan(read)] = CellState.MISSING
        states[np.isinf(read)] = CellState.UNREADABLE
        if isinstance(column.bounds, tuple):
            lower, upper = column.bounds
            states[((read < lower) | (read > upper)) & np.isfinite(read)] = CellState.OUTSIDE
            read = np.clip((np.clip(read, lower, upper) - lower) / (upper - lower) * 2 - 1, -1.0, 1.0)
        return Reading(np.where(states == CellState.UNREADABLE, np.nan, read), states)

    def names(self, column: Column) -> list[str]:
        return [column.name]

    def fill(self, block: Block, values: Floats) -> None:
        block[:, 0] = np.nan_to_num(values)

    def describe(self, column: Column) -> str:
        if not isinstance(column.bounds, tuple):
            return "numbers, whose bounds are bought: private quantiles, paid from the budget"
        lower, upper = column.bounds
        return f"numbers from {lower:.12g} to {upper:.12g}"

    def describe_outside(self, column: Column) -> str:
        if column.outside == "clamp":
            return f"Beyond them: put on the nearest bound; no number: {NULL}"
        return f"Beyond them, or no number: {NULL}"

    def invent(self, column: Column) -> dict[str, str]:
        if not isinstance(column.bounds, tuple):
            return {"a number": "0", "no number": "a text"}
        lower, upper = column.bounds
        tenth = (upper - lower) / 10
        below, above = min(lower - tenth, np.nextafter(lower, -np.inf)), max(upper + tenth, np.nextafter(upper, np.inf))
        cells = {"the lower bound": lower, "the upper bound": upper, "below": below, "above": above}
        return {**{what: values.text(cell) or "" for what, cell in cells.items()}, "no number": "a text"}


class _Categorical:
    """One of the declared categories: one encoded column for each, 1 in its own, and none where missing."""

    domain: Final = "categories"
    example: Final = '["a", "b"]'
    has_groups: Final = True

    def read(self, cells: Cells, column: Column, missing: Sequence[str]) -> Reading:
        found = codes(cells, column.categories or (), missing)
        states = np.zeros(found.shape, dtype=np.int8)
        states[found == ABSENT] = CellState.MISSING
        wrong = np.flatnonzero(found == WRONG)
        states[wrong] = CellState.UNKNOWN
        if cells.dtype == object:
            states[[place for place in wrong.tolist() if cells[place] is UNREADABLE]] = CellState.UNREADABLE
        return Reading(np.where(found >= 0, found.astype(np.float64), np.nan), states)

    def names(self, column: Column) -> list[str]:
        return [f"{column.name}={category}" for category in column.categories or ()]

    def fill(self, block: Block, values: Floats) -> None:
        known = np.flatnonzero(~np.isnan(values))
        block[known, values[known].astype(np.int64)] = 1

    def describe(self, column: Column) -> str:
        listed = column.categories or ()
        kind = "classes" if column.role == "target" else "categories"
        more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
        return f"one of {len(listed)} {kind} ({', '.join(map(repr, listed[:_SHOWN]))}{more})"

    def describe_outside(self, column: Column) -> str:
        return f"An unknown {'class' if column.role == 'target' else 'category'}: {NULL}"

    def invent(self, column: Column) -> dict[str, str]:
        listed, strange = column.categories or (), "no such value"
        while strange in map(values.key, listed):
            strange += "!"
        return {**{f"category {place + 1}": each for place, each in enumerate(listed)}, "unknown": strange}


TYPES: Final[Mapping[str, ColumnType]] = {"numeric": _Numeric(), "categorical": _Categorical()}


def type_of(column: Column) -> ColumnType:
    """The type of a column that is used."""
    return TYPES[column.type or ""]
