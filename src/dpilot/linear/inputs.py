"""From what scikit-learn users pass to a table of numbers: facts of the table raise, no value in it ever does.

The type of a column is the container's business: numpy, pandas and polars change it for the sake of one record. So a
cell is worth its own ``number``, in whatever type it comes: a whole number stays what it is among floats, complex
numbers or objects. A column that as a whole is text, dates or categories is a fact of the container, and refused, as
nothing here says what these mean. How many columns a list of rows has is a fact of the table: what ``bounds`` declares,
one end a column, or else the length of the first row. So is that a table is complex: an array of complex numbers is
refused if its first row is not real, and otherwise only rows that are not real are null.

A table without rows is a table like any other, unless the number of records is published: an empty list of rows, of
which nobody declares how many columns it has, is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

import numpy as np
from sklearn.utils.validation import check_array, check_consistent_length, column_or_1d, validate_data

from dpilot._arrays import Floats
from dpilot.data.cells import UNREADABLE, Cells, check_numeric, kind, objects, plain, unmask
from dpilot.data.frames import columns_of, is_frame
from dpilot.data.values import attempt, number
from dpilot.errors import InvalidInput
from dpilot.privacy.unit import PrivacyUnit

__all__ = [
    "features", "features_and_target", "loose", "numbers", "target_cells", "target_numbers", "training_features",
    "unit_ids", "whole_table", "width_of_rows", "without_unit",
]  # fmt: skip

_LOOSE = {"dtype": None, "ensure_all_finite": False, "ensure_min_samples": 0}
_NO_ROWS = (str, bytes, bytearray, Mapping, AbstractSet)

Found = TypeVar("Found")


def numbers(cells: Cells) -> Floats:
    """Float64, where what is no number becomes nan: the null record.

    >>> numbers(np.array([1, "2.5", "two", None, {}, 1j, 3 + 0j], dtype=object)).tolist()
    [1.0, 2.5, nan, nan, nan, nan, 3.0]
    """
    with np.errstate(all="ignore"):  # whatever a caller has set: no number of a record may raise or warn
        if cells.dtype.kind in "fiub":
            return np.asarray(cells, dtype=np.float64)
    flat = [_number(cell) for cell in plain(cells.ravel()).tolist()]
    return np.asarray(flat, dtype=np.float64).reshape(cells.shape)


def loose(tags: Any) -> Any:
    """The tags of an estimator that takes any value, as what is no number is nan: the null record."""
    tags.input_tags.allow_nan = True
    tags.input_tags.string = True
    return tags


def features(estimator: Any, X: Any) -> Floats:
    """The features a fitted estimator predicts from."""
    width = None if _has_rows(X) else estimator.n_features_in_
    return _quiet(lambda: _check_table(estimator, X, width, _LOOSE, reset=False))


def training_features(estimator: Any, X: Any, bounds: Any = None) -> Floats:
    """The features an estimator without a target is fitted on."""
    checks = _checks(getattr(estimator, "size", None))
    return _quiet(lambda: _check_table(estimator, X, _width_of_bounds(bounds), checks, reset=True))


def features_and_target(estimator: Any, X: Any, y: Any, bounds: Any = None) -> tuple[Floats, Cells]:
    """Features as numbers and the target as plain cells, after checks of shapes, lengths and types.

    ``bounds`` may declare the number of columns, where X is a list of rows.

    Edge cases:
        A target that is a list becomes an array of objects; an entry of it that is a list of one is that one.
    """

    def check() -> tuple[Floats, Cells]:
        if y is None:
            validate_data(estimator, X, y, skip_check_array=True)  # says whose target is missing
        table = _check_table(estimator, X, _width_of_bounds(bounds), _checks(estimator.size), reset=True)
        target = _cells_of(y)
        check_consistent_length(table, target)
        return table, target

    return _quiet(check)


def unit_ids(X: Any, unit: PrivacyUnit, units: Any) -> tuple[Any, Cells | None]:
    """The table without its column of ids, and the ids, one a row: from that column, or apart as ``units``.

    (X, None) where each row is a record.
    """
    if unit.is_record:
        return X, None
    column = _named_column(X, unit.name)
    if (column is None) == (units is None):
        found = "nowhere" if column is None else "twice"
        raise InvalidInput(
            f"the ids of unit {unit.name!r} are {found}: expected them once, as that column of a frame or as "
            "fit(X, y, units=...), one for each row."
        )
    ids = units if column is None else column
    if getattr(ids, "ndim", 1) != 1 or isinstance(ids, str | bytes | Mapping):
        raise InvalidInput("units are no list of ids: expected one id for each row.")
    cells = plain(ids) if hasattr(ids, "dtype") or hasattr(ids, "type") else objects(ids)
    return without_unit(X, unit), cells


def without_unit(X: Any, unit: PrivacyUnit) -> Any:
    """A table without the column of ids, if it is there."""
    if unit.is_record or _named_column(X, unit.name) is None:
        return X
    if hasattr(X, "iloc"):
        return X.loc[:, [name != unit.name for name in X.columns]]
    return X.drop([unit.name])


def target_cells(y: Any) -> Cells:
    """A target as it is, one cell a record: a list becomes an array of objects, where no cell changes another.

    >>> target_cells([1, "two", [3, 4]]).tolist()
    [1, 'two', [3, 4]]
    """
    return _quiet(lambda: _cells_of(y))


def target_numbers(y: Any, length: int) -> Floats:
    """A target beside records that are read by a schema: one number a record, nan for what is none."""

    def check() -> Floats:
        column = _cells_of(y)
        if column.shape[0] != length:
            raise InvalidInput("X and y have inconsistent numbers of records")
        return numbers(column)

    return _quiet(check)


def _named_column(X: Any, name: str) -> Any:
    """The column of a frame by that name; None where there is none, or X is no frame."""
    found = [column for each, column in columns_of(X) if each == name] if is_frame(X) else []
    if len(found) > 1:
        raise InvalidInput(f"column {name!r} is more than once in X: expected it once, as it holds the ids.")
    return found[0] if found else None


def _check_table(estimator: Any, X: Any, width: int | None, checks: Mapping[str, Any], *, reset: bool) -> Floats:
    """X as numbers, after scikit-learn's checks of names and shapes; it never sees a value that is no number."""
    if is_frame(X):
        table: Any = _frame_numbers(X)
        check_array(table, **checks, estimator=estimator, input_name="X")
        validate_data(estimator, X, reset=reset, skip_check_array=True)
        return np.asarray(table)
    table = _table(X, width)
    return np.asarray(validate_data(estimator, table, reset=reset, **checks), dtype=np.float64)


def _frame_numbers(X: Any) -> Floats:
    columns = columns_of(X)
    for name, column in columns:
        check_numeric(column, name)
    values = np.empty((len(X), len(columns)))
    for place, (_, column) in enumerate(columns):
        values[:, place] = numbers(plain(column))
    return values


def _quiet(check: Callable[[], Found]) -> Found:
    """What ``check`` gives, without a warning of numpy's; if scikit-learn raises, that error without the records."""
    try:
        with np.errstate(all="ignore"):
            return check()
    except InvalidInput:
        raise  # our own, which tells of no record
    except (TypeError, ValueError) as error:
        refusal = TypeError if isinstance(error, TypeError) else InvalidInput
        said = re.sub(r"\(\d+,", "(,", str(error).split("\n")[0].split(": ")[0].rstrip(":"))
    said += ". Reshape your data: X.reshape(-1, 1) for one column" if "1D array" in said else ""
    raise refusal(said)  # here, not above: the first error would travel along with this one


def _checks(size: Any) -> dict[str, Any]:
    """What is asked of a table to fit to: one record or more only where their number is published."""
    return {**_LOOSE, "ensure_min_samples": int(isinstance(size, str) and size == "public")}


def _has_rows(X: Any) -> bool:
    return not isinstance(X, Sequence) or len(X) > 0


def _table(X: Any, width: int | None) -> Any:
    """Lists of rows and arrays as numbers, a row of another length as nan; what is neither stays as it is."""
    X = unmask(X)
    if isinstance(X, np.ndarray) and (X.dtype != object or X.ndim > 1):
        check_numeric(X, "X")
        if X.dtype.kind == "c" and X[:1].imag.any():
            raise InvalidInput("Complex data not supported")
        return X if X.dtype.kind in "fiub" else numbers(X)
    if isinstance(X, np.ndarray):
        X = X.tolist()
    if not isinstance(X, Sequence) or isinstance(X, _NO_ROWS) or (width is None and not _has_rows(X)):
        return X
    width = width_of_rows(X) if width is None else width
    table = np.full((len(X), width), np.nan)
    for place, row in enumerate(X):
        cells = attempt(_cells, row, otherwise=None)
        if cells is not None and len(cells) == width:
            table[place] = [_number(cell) for cell in cells]
    return table


def _cells_of(y: Any) -> Cells:
    """A target as plain cells: those of a list one by one, where a list of one is that one."""
    if isinstance(y, Sequence) and not isinstance(y, _NO_ROWS):
        return objects(attempt(_unwrap, each, otherwise=UNREADABLE) for each in y)
    if not isinstance(y, np.ndarray) and hasattr(y, "dtype" if hasattr(y, "dtype") else "type"):
        if kind(y) == "nested":
            raise InvalidInput("y is a column of lists or records: expected one value for each record.")
        return plain(y)  # the column of a frame
    values = np.asarray(unmask(y))
    if values.ndim != 1:
        column_or_1d(np.empty(values.shape, dtype=np.bool_), warn=True)  # of the shape alone: one cell decides the type
    return plain(values.reshape(len(values)))


def _unwrap(each: Any) -> Any:
    return each[0] if isinstance(each, list | tuple) and len(each) == 1 else each


def whole_table(X: Any, bounds: Any = None, size: Any = None) -> Any:
    """A table as numbers, by facts of the whole of it: what is split into parts is read before, each row once.

    A frame stays one, by the same names. Lists of rows are as wide as ``bounds`` declares, or as the first of all.
    ``size`` is declared as for an estimator.
    """

    def check() -> Any:
        table = _frame_numbers(X) if is_frame(X) else _table(X, _width_of_bounds(bounds))
        return check_array(table, **_checks(size), input_name="X")

    table = _quiet(check)
    if not is_frame(X):
        return table
    import pandas as pd

    return pd.DataFrame(table, columns=[name for name, _ in columns_of(X)])


def width_of_rows(X: Sequence[Any]) -> int:
    """How many columns a list of rows has: the length of the first."""
    first = attempt(_cells, X[0], otherwise=None) if len(X) else None
    if first is None:
        raise InvalidInput("X is a list, and its first entry is no row: expected a list of rows, or a table.")
    return len(first)


def _width_of_bounds(bounds: Any) -> int | None:
    pair = bounds.get("X") if isinstance(bounds, Mapping) else None
    ends = pair if isinstance(pair, list | tuple) else ()
    return next((len(end) for end in ends if np.ndim(end) == 1), None)


def _cells(row: Any) -> list[Any] | None:
    """The entries of a row, or None where it is none."""
    return list(row) if hasattr(row, "__len__") and not isinstance(row, _NO_ROWS) else None


def _number(cell: Any) -> float:
    value = number(cell)
    return np.nan if value is None else value
