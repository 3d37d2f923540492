"""From what scikit-learn users pass to a table of numbers: facts of the table raise, no value in it ever does.

Arrays and frames have one type a column, which is a fact of the table. Lists and arrays of objects have none: numpy
would find one by looking at every record, so that one record decides what the others become. They are read cell by
cell, each cell by itself. How many columns a list of rows has is a fact of the table: what ``bounds`` declares, one end
a column, or else the length of the first row.

A table without rows is a table like any other, unless the number of records is published: an empty list of rows, of
which nobody declares how many columns it has, is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from decimal import Decimal
from numbers import Real
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_consistent_length, column_or_1d, validate_data

from dpilot.errors import InvalidInput
from dpilot.statistics.rows import Floats

__all__ = ["features", "features_and_target", "loose", "numbers", "target_cells", "target_numbers", "training_features"]

_LOOSE = {"dtype": None, "ensure_all_finite": False, "ensure_min_samples": 0}
_NUMBERS = (Real, np.bool_, Decimal, str, bytes)
_NO_ROWS = (str, bytes, bytearray, Mapping, AbstractSet)

Found = TypeVar("Found")


def numbers(values: NDArray[Any]) -> Floats:
    """Float64, where what is no number becomes nan: the null record.

    >>> numbers(np.array([1, "2.5", "two", None, {}, 1j], dtype=object)).tolist()
    [1.0, 2.5, nan, nan, nan, nan]
    """
    with np.errstate(over="ignore"):
        if values.dtype.kind in "fiub":
            return np.asarray(values, dtype=np.float64)
        flat = [_number(value) for value in values.ravel().tolist()]
    return np.asarray(flat, dtype=np.float64).reshape(values.shape)


def loose(tags: Any) -> Any:
    """The tags of an estimator that takes any value, as what is no number is nan: the null record."""
    tags.input_tags.allow_nan = True
    tags.input_tags.string = True
    return tags


def features(estimator: Any, X: Any) -> Floats:
    """The features a fitted estimator predicts from."""
    width = None if _has_rows(X) else estimator.n_features_in_
    return numbers(np.asarray(_quiet(lambda: validate_data(estimator, _table(X, width), reset=False, **_LOOSE))))


def training_features(estimator: Any, X: Any, bounds: Any = None) -> Floats:
    """The features an estimator without a target is fitted on."""
    checks, width = _checks(estimator), _declared_width(bounds)
    return numbers(np.asarray(_quiet(lambda: validate_data(estimator, _table(X, width), **checks))))


def features_and_target(estimator: Any, X: Any, y: Any, bounds: Any = None) -> tuple[Floats, NDArray[Any]]:
    """Features as numbers and the target as it is, after checks of shapes, lengths and types.

    ``bounds`` may declare the number of columns, where X is a list of rows.

    Edge cases:
        A target that is a list becomes an array of objects; an entry of it that is a list of one is that one.
    """

    def checked() -> tuple[Floats, NDArray[Any]]:
        checks, rows = _checks(estimator), _table(X, _declared_width(bounds))
        either = (checks, {**checks, "ensure_2d": False})
        table, target = validate_data(estimator, rows, _column(y), validate_separately=either)
        check_consistent_length(table, target)
        return numbers(np.asarray(table)), column_or_1d(np.asarray(target), warn=True)

    return _quiet(checked)


def target_cells(y: Any) -> NDArray[Any]:
    """A target as it is, one cell a record: a list becomes an array of objects, where no cell changes another.

    >>> target_cells([1, "two", [3, 4]]).tolist()
    [1, 'two', [3, 4]]
    """
    return _quiet(lambda: column_or_1d(np.asarray(_column(y)), warn=True))


def target_numbers(y: Any, length: int) -> Floats:
    """A target beside records that are read by a schema: one number a record, nan for what is none."""

    def checked() -> Floats:
        column = column_or_1d(np.asarray(_column(y)), warn=True)
        if column.shape[0] != length:
            raise InvalidInput("X and y have inconsistent numbers of records")
        return numbers(column)

    return _quiet(checked)


def _quiet(check: Callable[[], Found]) -> Found:
    """What ``check`` gives; if it raises, the same error without the records and their number."""
    try:
        return check()
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else InvalidInput
        said = re.sub(r"\(\d+,", "(,", str(error).split("\n")[0].split(": ")[0].rstrip(":"))
    said += ". Reshape your data: X.reshape(-1, 1) for one column" if "1D array" in said else ""
    raise kind(said)  # here, not above: the first error would travel along with this one


def _checks(estimator: Any) -> dict[str, Any]:
    """What is asked of a table to fit to: one record or more only where their number is published."""
    size = getattr(estimator, "size", None)
    return {**_LOOSE, "ensure_min_samples": int(isinstance(size, str) and size == "public")}


def _has_rows(X: Any) -> bool:
    return not isinstance(X, Sequence) or len(X) > 0


def _table(X: Any, width: int | None) -> Any:
    """A list of rows as numbers, a row of another length as nan; what is no such list stays as it is."""
    if isinstance(X, np.ndarray) and X.dtype == object and X.ndim == 1:
        X = X.tolist()
    if not isinstance(X, Sequence) or isinstance(X, _NO_ROWS) or (width is None and not _has_rows(X)):
        return X
    if width is None:
        first = _cells(X[0])
        if first is None:
            raise InvalidInput("X is a list, and its first entry is no row: expected a list of rows, or a table.")
        width = len(first)
    table = np.full((len(X), width), np.nan)
    for place, row in enumerate(X):
        cells = _cells(row)
        if cells is not None and len(cells) == width:
            table[place] = [_number(cell) for cell in cells]
    return table


def _column(y: Any) -> Any:
    """A list of targets as objects, one by one; what is no list stays as it is."""
    if not isinstance(y, Sequence) or isinstance(y, _NO_ROWS):
        return y
    column = np.empty(len(y), dtype=object)
    for place, value in enumerate(y):
        column[place] = value[0] if isinstance(value, list | tuple) and len(value) == 1 else value
    return column


def _declared_width(bounds: Any) -> int | None:
    pair = bounds.get("X") if isinstance(bounds, Mapping) else None
    ends = pair if isinstance(pair, list | tuple) else ()
    return next((len(end) for end in ends if np.ndim(end) == 1), None)


def _cells(row: Any) -> list[Any] | None:
    """The entries of a row, or None where it is none."""
    if isinstance(row, _NO_ROWS) or not hasattr(row, "__len__"):
        return None
    try:
        return list(row)
    except Exception:  # whatever a record is, it never raises
        return None


def _number(value: Any) -> float:
    if not isinstance(value, _NUMBERS):
        return np.nan
    try:
        return float(value)
    except Exception:  # whatever a record is, it never raises
        return np.nan
