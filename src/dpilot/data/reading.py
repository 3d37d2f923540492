"""Cells read as what the schema declares: numbers, or codes of categories; one cell at a time, whatever is around it.

>>> cells = np.array(["17", " 2.5 ", "", "1,000", "nan", None, True], dtype=object)
>>> numbers(cells, ("",)).tolist()
[17.0, 2.5, nan, inf, nan, nan, 1.0]
>>> codes(np.array(["b", "", " a", "c", 1.0], dtype=object), ("a", "b", "1"), ("",)).tolist()
[1, -1, 0, -2, 2]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from dpilot._arrays import Floats, Indices
from dpilot.data.cells import Cells
from dpilot.data.values import attempt, key, number

ABSENT: Final = -1  # the code of a missing cell
WRONG: Final = -2  # the code of a cell outside the declared categories
_LATER: Final = -3


def numbers(cells: Cells, missing: Sequence[str]) -> Floats:
    """Float64, where nan says that the cell is missing, and an infinity that it holds no finite number.

    A cell is worth its ``values.number``, whatever type the column has as a whole. ``missing`` texts that are numbers
    are missing as numbers too, as a container may make numbers of texts, or texts of numbers.
    """
    absent = _Missing.of(missing)
    if cells.dtype.kind in "fiub":
        with np.errstate(all="ignore"):  # a nan of any payload, a long double: no cell may raise or warn
            return absent.without(cells.astype(np.float64))
    listed = cells.tolist()
    if all(type(cell) is str for cell in listed):
        try:
            return absent.without(np.fromiter(map(float, listed), np.float64, len(listed)))
        except ValueError:  # some cell is no number: read each by itself, to the same numbers
            pass
    return absent.without(np.fromiter((absent.read(cell) for cell in listed), np.float64, len(listed)))


def codes(cells: Cells, categories: Sequence[Any], missing: Sequence[str]) -> Indices:
    """The place of each cell among the categories, or ABSENT, or WRONG.

    Edge cases:
        A text is compared as it is, then, like everything else, by its ``values.key``: 1, 1.0, "1", "1.0" and True are
        one category. A value that is a category is not missing.
        A whole number from 2^53 on is WRONG, whatever its type, as a float would not tell it from the next.
    """
    known = lookup(categories, missing)
    if cells.dtype.kind in "fiub":
        values, places = np.unique(cells, return_inverse=True)
        each = [_code(value, known) for value in values.tolist()]
        return np.asarray(each, dtype=np.int64)[places.reshape(-1)]
    listed = cells.tolist()
    found = [known.get(cell, _LATER) if type(cell) is str else _LATER for cell in listed]
    result = np.array(found, dtype=np.int64)
    for place in np.flatnonzero(result == _LATER).tolist():
        result[place] = _code(listed[place], known)
    return result


class _Missing:
    """The texts that mean a missing number, and the numbers that they spell."""

    __slots__ = ("_texts", "_values")

    def __init__(self, texts: frozenset[str], values: tuple[float, ...]) -> None:
        self._texts, self._values = texts, values

    @classmethod
    def of(cls, missing: Sequence[str]) -> _Missing:
        spelled = (number(each) for each in missing)
        return cls(frozenset(missing), tuple({value for value in spelled if value is not None}))

    def read(self, cell: Any) -> float:
        return attempt(self._read, cell, otherwise=math.inf)

    def _read(self, cell: Any) -> float:
        if isinstance(cell, bytes):
            cell = _decode(cell)
        if isinstance(cell, str) and (cell in self._texts or cell.strip() in self._texts):
            return math.nan
        value = number(cell)
        return math.inf if value is None else value

    def without(self, values: Floats) -> Floats:
        return np.where(np.isin(values, self._values), np.nan, values) if self._values else values


def _decode(cell: bytes) -> Any:
    try:
        return cell.decode("utf-8")
    except UnicodeDecodeError:
        return cell


def lookup(categories: Sequence[Any], missing: Sequence[str]) -> dict[Any, int]:
    """The code of each text and key; those of categories come last, so that they win."""
    named = {name: place for place, name in enumerate(categories) if isinstance(name, str)}
    keys = {key(name): place for place, name in enumerate(categories)}
    known: dict[Any, int] = dict.fromkeys([*missing, *map(key, missing)], ABSENT) | keys | named
    return {written: place for written, place in known.items() if written is not None}


def _code(cell: Any, known: dict[Any, int]) -> int:
    return attempt(lambda: _find(key(cell), known), otherwise=WRONG)


def _find(written: str | None, known: dict[Any, int]) -> int:
    return known.get(written, ABSENT if written == "nan" else WRONG)


def cell_keys(cells: Cells) -> list[str | None]:
    """The ``values.key`` of each cell; None for what is no single value."""
    if cells.dtype.kind in "fiub":
        found, places = np.unique(cells, return_inverse=True)
        each = [key(value) for value in found.tolist()]
        return [each[place] for place in places.reshape(-1).tolist()]
    return [key(cell) for cell in cells.tolist()]


def missing_keys(missing: Sequence[str]) -> set[str]:
    """The keys of cells that are missing: of the texts that say so, and of a missing number."""
    return {"nan", *(each for each in map(key, missing) if each is not None)}
