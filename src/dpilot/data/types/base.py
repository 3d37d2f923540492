"""What a type of column does, and what becomes of its cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dpilot.data.cells import Cells

if TYPE_CHECKING:
    from dpilot.data.column import Column

__all__ = ["BUY", "NULL", "Block", "CellState", "ColumnType", "Embedding", "Reading", "States"]

States = NDArray[np.int8]
Block = NDArray[np.float32]

BUY: Final = "buy"
"""Of bounds and levels: what is not declared, but paid for."""
NULL: Final = "the record is null"


class CellState(IntEnum):
    """What one cell is to its column: the first can always be used, the last never."""

    FINE = 0
    MISSING = 1
    OUTSIDE = 2
    """a number or a time beyond the bounds, a picture of another mode"""
    UNKNOWN = 3
    """a value that is no declared category, or no declared class"""
    UNREADABLE = 4
    """nothing of the declared type, or part of a line that is no record"""


@dataclass(frozen=True, slots=True)
class Reading:
    """The cells of one column: what each is worth, one row a cell, and its ``CellState``.

    Numbers are scaled from their bounds to [-1, 1], those outside put on the nearest one (bounds that are still to be
    bought scale nothing); categories are their codes, times seconds, texts themselves, vectors rows of unit length,
    pictures their pixels. What a cell that is not fine is worth is nan (None among texts, zeros among vectors and
    pictures), or the nearest bound.
    """

    values: Cells
    states: States


class Embedding(Protocol):
    """What a fixed transform or a pretrained network makes of values that were read: rows of unit length.

    Guarantee:
        A row is a function of its own value, and of public weights.
    """

    @property
    def width(self) -> int: ...

    def __call__(self, values: Cells, /) -> Block: ...


class ColumnType(Protocol):
    """What a type of column does.

    ``domain`` is the key of a column that declares which values it can have, ``keys`` are those that it may have.
    ``has_groups``: whether it may be protected; ``is_target``: whether it can be predicted; ``is_unit``: whether what
    it becomes is a row of unit length, as long as all other columns together are made (``fit.expansion``).

    Guarantee:
        ``read`` and ``fill`` look at each cell by itself, and no cell raises. What ``fill`` writes is in [-1, 1].
    """

    @property
    def domain(self) -> str: ...

    @property
    def example(self) -> str: ...

    @property
    def keys(self) -> tuple[str, ...]: ...

    @property
    def has_groups(self) -> bool: ...

    @property
    def is_target(self) -> bool: ...

    @property
    def is_unit(self) -> bool: ...

    def settle(self, column: Column, /) -> dict[str, Any]:
        """What the column's own keys come to, defaults filled in; contradictions are refused."""
        ...

    def flaws(self, column: Column, /) -> tuple[CellState, ...]:
        """What a cell can be beside fine."""
        ...

    def read(self, cells: Cells, column: Column, missing: Sequence[str], /) -> Reading: ...

    def names(self, column: Column, /) -> list[str]:
        """The encoded columns."""
        ...

    def lowest(self, column: Column, /) -> list[float]:
        """The least that each encoded column can be: 0 or -1."""
        ...

    def fill(self, block: Block, values: Cells, column: Column, /) -> None: ...

    def describe(self, column: Column, /) -> str: ...

    def describe_outside(self, column: Column, /) -> str: ...

    def invent(self, column: Column, /) -> dict[str, str]:
        """Cells at the edges of what is declared, as a file would hold them, by what they are."""
        ...

    def draw(self, column: Column, rows: int, rng: Generator, /) -> Any:
        """Made-up cells, all fine: from the declaration alone."""
        ...
