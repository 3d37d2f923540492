"""Cells read as what the schema declares: numbers, or codes of categories; one cell at a time, whatever is around it.

>>> cells = np.array(["17", " 2.5 ", "", "1,000", "nan", None, True], dtype=object)
>>> numbers(cells, ("",)).tolist()
[17.0, 2.5, nan, inf, inf, nan, 1.0]
>>> codes(np.array(["b", "", " a", "c", 1.0], dtype=object), ("a", "b", "1"), ("",)).tolist()
[1, -1, 0, -2, 2]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from numbers import Real
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpilot.data.cells import Cells
from dpilot.data.text import OTHER_NAMES, WHOLE, text
from dpilot.statistics.rows import Floats

__all__ = ["ABSENT", "WRONG", "codes", "numbers"]

ABSENT: Final = -1  # the code of a missing cell
WRONG: Final = -2  # the code of a cell outside the declared categories
_LATER: Final = -3


def numbers(cells: Cells, missing: Sequence[str]) -> Floats:
    """Float64, where nan says that the cell is missing, and an infinity that it holds no finite number.

    Edge cases:
        A text is a number if Python's ``float`` reads it: "1e3" and " 12 " are, "1,000", "12 years" and "nan" are not.
        True is 1. A date is no number.
    """
    if cells.dtype.kind in "fiub":
        with np.errstate(over="ignore"):
            return cells.astype(np.float64)
    listed = cells.tolist()
    if set(map(type, listed)) <= {str} and not any(map(_is_number, missing)):
        try:
            values = np.fromiter(map(float, listed), np.float64, len(listed))
            return np.where(np.isfinite(values), values, np.inf)
        except ValueError:  # some cell is no number: read each by itself, to the same numbers
            pass
    absent = frozenset(missing)
    return np.fromiter((_number(cell, absent) for cell in listed), np.float64, len(listed))


def codes(cells: Cells, categories: Sequence[str], missing: Sequence[str]) -> NDArray[np.int64]:
    """The place of each cell among the categories, or ABSENT, or WRONG.

    Edge cases:
        A text is compared as it is, then without the blanks around it. A number is compared by its ``text``, and "1.0"
        counts as the category "1" where it is no category itself. A text that is a category is not missing.
        True and 1 name one category, and so do False and 0: whichever of the two is declared, both are found.
        A whole number from 2^53 on is WRONG, whatever its type, as a float would not tell it from the next; a text of
        its digits is compared like any other.
    """
    known = _lookup(categories, missing)
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


def _lookup(categories: Sequence[str], missing: Sequence[str]) -> dict[str, int]:
    known = {name: place for place, name in enumerate(categories)}
    known = {OTHER_NAMES[name]: place for name, place in known.items() if name in OTHER_NAMES} | known
    as_floats = {f"{name}.0": place for name, place in known.items() if name.lstrip("-").isdecimal()}
    return {**dict.fromkeys(missing, ABSENT), **as_floats, **known}


def _code(cell: Any, known: dict[str, int]) -> int:
    try:
        if _is_missing(cell):
            return ABSENT
        if isinstance(cell, Real | Decimal) and WHOLE <= abs(float(cell)) < math.inf:
            return WRONG
        written = text(cell)
        if written is None:
            return WRONG
        return known[written] if written in known else known.get(written.strip(), WRONG)
    except Exception:  # whatever a cell is, it never raises
        return WRONG


def _number(cell: Any, missing: frozenset[str]) -> float:
    try:
        if isinstance(cell, bytes):
            cell = cell.decode("utf-8")
        if isinstance(cell, str):
            return math.nan if cell in missing or cell.strip() in missing else _finite(float(cell))
        if _is_missing(cell):
            return math.nan
        return _finite(float(cell)) if isinstance(cell, Real | np.bool_ | Decimal) else math.inf
    except Exception:  # whatever a cell is, it never raises
        return math.inf


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def _is_missing(cell: Any) -> bool:
    """None and nan; pandas' NA and NaT by name, as the first does not compare and the package need not be loaded."""
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(cell, float | np.floating | Decimal) and bool(cell != cell)


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True
