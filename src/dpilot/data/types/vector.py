"""Lists of numbers: embeddings, histograms, whatever has a length and a direction."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dpilot.data import values
from dpilot.data.cells import Cells, objects
from dpilot.data.reading import missing_keys, numbers
from dpilot.data.types.base import NULL, Block, CellState, Reading

if TYPE_CHECKING:
    from dpilot.data.column import Column

__all__ = ["Vector"]

_MOST: Final = 1 << 20
_ROWS: Final = 1 << 14  # scaled at a time


class Vector:
    """``width`` encoded columns: each list of numbers over its own length, zeros where it is missing.

    Edge cases:
        A list of another length, with a value that is no finite number, or what is no list, makes the record null. A
        text is a list where it is one in JSON. A list of zeros stays one. Those of a ``file`` are rows of an array
        beside the table (``data.files``); of ``columns``, the numbers of a record there, missing where all of them are.
    """

    domain: Final = "width"
    example: Final = "384"
    keys: Final = ("width", "file", "columns")
    has_groups: Final = False
    is_target: Final = False
    is_unit: Final = True

    def settle(self, column: Column) -> dict[str, Any]:
        width: Any = column.width
        if column.columns is not None:
            return _settle_columns(column)
        if isinstance(width, bool) or not isinstance(width, int) or not 1 <= width <= _MOST:
            said = "missing" if width is None else repr(width)
            column.refuse(f"width is {said}: expected how many numbers each list has, as {self.example}")
        if column.file is not None and not (isinstance(column.file, str) and column.file.endswith(".npy")):
            column.refuse(f'file is {column.file!r}: expected the name of an .npy file beside the table, as "x.npy"')
        return {}

    def flaws(self, column: Column) -> tuple[CellState, ...]:
        return (CellState.MISSING, CellState.UNREADABLE)

    def read(self, cells: Cells, column: Column, missing: Sequence[str]) -> Reading:
        width = int(column.width or 1)
        rows = np.full((len(cells), width), np.nan, dtype=np.float32)
        states = np.zeros(len(cells), dtype=np.int8)
        if column.columns is not None and cells.ndim == 2:
            return _read_columns(cells, missing, rows)
        if cells.ndim == 2 and cells.dtype.kind in "fiub":
            for start in range(0, len(cells) if cells.shape[1] == width else 0, _ROWS):
                rows[start : start + _ROWS] = _unit(cells[start : start + _ROWS])
        else:
            absent = missing_keys(missing)
            for place, cell in enumerate(cells if cells.ndim == 2 else cells.tolist()):
                if cells.ndim == 1 and values.key(cell) in absent:
                    states[place], rows[place] = CellState.MISSING, 0.0
                else:
                    rows[place] = values.attempt(_read, cell, width, otherwise=np.nan)
        states[np.isnan(rows[:, 0])] = CellState.UNREADABLE
        return Reading(np.nan_to_num(rows, copy=False), states)

    def names(self, column: Column) -> list[str]:
        return [f"{column.name}[{place}]" for place in range(column.width or 0)]

    def lowest(self, column: Column) -> list[float]:
        return [-1.0] * (column.width or 0)

    def fill(self, block: Block, values: Cells, column: Column) -> None:
        block[:] = values

    def describe(self, column: Column) -> str:
        if column.columns is None:
            return f"lists of {column.width:,} numbers, each over its own length"
        names = column.columns.split("..") if isinstance(column.columns, str) else column.columns
        named = f"{names[0]} to {names[-1]}" if len(names) > 1 else names[0]
        return f"the columns {named} as one list of numbers, over its own length"

    def describe_outside(self, column: Column) -> str:
        return f"Another length, or no finite numbers: {NULL}"

    def invent(self, column: Column) -> dict[str, str]:
        width = column.width
        if width is None:  # that of columns by their names, which no table has told yet
            return {}
        return {"a list": json.dumps([1] * width), "a longer list": json.dumps([1] * (width + 1)), "no list": "a text"}

    def draw(self, column: Column, rows: int, rng: Generator) -> Any:
        return objects(rng.normal(size=(rows, column.width or 1)))


def _settle_columns(column: Column) -> dict[str, Any]:
    """Columns by a wildcard or a range, whose number is known with a table's names; or their names themselves."""
    given: Any = column.columns
    if column.file is not None:
        column.refuse(f"columns are {given!r} beside a file: expected one of them")
    if isinstance(given, str):
        if not (any(sign in given for sign in "*?[") or ".." in given.strip(".")):
            column.refuse(
                f'columns are {given!r}: expected "e*", "e0..e383" (in the table\'s order), or a list of names'
            )
        return {}
    names = tuple(given) if isinstance(given, list | tuple) else ()
    if not names or not all(isinstance(each, str) for each in names) or len(set(names)) < len(names):
        column.refuse(f"columns are {given!r}: expected names of different columns")
    if column.width not in (None, len(names)):
        column.refuse(f"width is {column.width!r}, but it has {len(names)} columns: leave width out, or correct them")
    if len(names) > _MOST:
        column.refuse(f"it has {len(names)} columns: expected at most {_MOST}")
    return {"columns": names, "width": len(names)}


def _read_columns(cells: Cells, missing: Sequence[str], rows: NDArray[np.float32]) -> Reading:
    """Numbers that lie in columns of their own, each cell read by itself; ``rows`` are to be filled."""
    states = np.zeros(len(cells), dtype=np.int8)
    for start in range(0, len(cells), _ROWS):
        some = slice(start, start + _ROWS)
        read = np.column_stack([numbers(each, missing) for each in cells[some].T])
        rows[some] = _unit(read)
        states[some][np.isnan(rows[some, 0])] = CellState.UNREADABLE
        states[some][np.isnan(read).all(axis=1)] = CellState.MISSING
    return Reading(np.nan_to_num(rows, copy=False), states)


def _read(cell: Any, width: int) -> Any:
    """One list as a row of unit length; nan where it is none of ``width`` finite numbers."""
    if isinstance(cell, bytes):
        cell = cell.decode("utf-8")
    if isinstance(cell, str):
        cell = json.loads(cell)
    if isinstance(cell, np.ma.MaskedArray):
        cell = cell.tolist()  # None where it is masked
    if not isinstance(cell, np.ndarray):
        if not isinstance(cell, list | tuple):
            return np.nan
        cell = objects(cell)
    cell = np.asarray(cell)  # no class of its own
    if cell.shape != (width,):
        return np.nan
    if cell.dtype.kind not in "fiub":
        cell = np.array([values.number(each) for each in cell.tolist()], dtype=np.float64)  # None becomes nan
    return _unit(cell[None])[0]


def _unit(rows: Cells) -> Any:
    """Rows over their lengths, taken relative to the largest entry so that no square vanishes or overflows."""
    with np.errstate(all="ignore"):
        exact = rows.astype(np.float64)
        largest = np.abs(exact).max(axis=1, keepdims=True)
        direction = exact / np.where(largest > 0, largest, 1.0)
        lengths = np.linalg.norm(direction, axis=1, keepdims=True)
        found = direction / np.where(lengths > 0, lengths, 1.0)
    return np.where(np.isfinite(exact).all(axis=1, keepdims=True), found, np.nan)
