"""A column of any library as an array of plain cells: numbers of one type, or Python objects one by one.

What a table is made of (pandas, polars, arrow) chooses types for whole columns, partly by looking at the values. Here
each cell becomes itself again, so that what one record holds never changes what the others are read as.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpilot.data import toml
from dpilot.data.values import attempt
from dpilot.errors import InvalidInput

Cells = NDArray[Any]

_DECLARED: Final[dict[str, dict[str, Any]]] = {
    "text": {"type": "text"},
    "categories": {"type": "categorical", "categories": ["all", "values", "it", "can", "have"]},
    "dates": {"type": "datetime", "range": ["2020-01-01", "2030-01-01"]},
    "lists": {"type": "vector", "width": 384},
}
_FINE: Final = ("ns", "ps", "fs", "as")  # units of time that Python's own types do not have


class _Unreadable:
    """A cell of which nothing can be said; it is no value and it is not missing, so its record is the null record."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<unreadable>"

    def __reduce__(self) -> str:
        return "UNREADABLE"


UNREADABLE: Final = _Unreadable()


def plain(column: Any) -> Cells:
    """The cells of a pandas, polars or arrow column, or of a numpy array; None, nan and NaT among them are missing.

    Edge cases:
        Nothing raises because of a value: a cell that cannot be taken out is UNREADABLE. A numpy array of durations
        raises: numpy makes durations of whole numbers for the sake of one, and what they were is lost.
    """
    if isinstance(column, np.ma.MaskedArray) and column.ndim > 1:
        return plain(unmask(column))
    if isinstance(column, np.ma.MaskedArray):
        cells = zip(plain(column.data).tolist(), np.ma.getmaskarray(column).tolist(), strict=True)
        return objects(None if masked else cell for cell, masked in cells)
    if isinstance(column, np.ndarray):
        if column.dtype.kind == "m":
            raise InvalidInput("a column is a numpy array of durations: expected numbers, texts or dates. Convert it.")
        if column.dtype.kind == "M":
            return _times(column)
        return column if column.dtype.kind in "fiubO" else objects(column.tolist())
    library = type(column).__module__.partition(".")[0]
    if library == "polars":
        no_arrow = str(column.dtype) in ("Object", "Int128", "UInt128")
        return objects(column.to_list()) if no_arrow else plain_arrow(column.to_arrow())
    if library == "pyarrow":
        return plain_arrow(column)
    return _pandas(column)


def unmask(values: Any) -> Any:
    """A masked array as a plain one: what it hides is missing, whatever type it has as a whole; all else as it is.

    Numpy forgets a mask where an array is taken for a plain one, and shows what was hidden.

    >>> unmask(np.ma.array([1, 2], mask=[False, True])).tolist()
    [1.0, nan]
    """
    if not isinstance(values, np.ma.MaskedArray):
        return values
    hidden = np.ma.getmaskarray(values)
    if values.dtype.kind in "fiub":
        return np.where(hidden, np.nan, values.data)
    made = values.data.astype(object)
    made[hidden] = None
    return made


def kind(column: Any) -> str:
    """What the type of a whole column, or an arrow type, can hold: "nested", "time", or "any" where cells decide.

    Edge cases:
        pandas and numpy change the type of a column for the sake of one value, so theirs says nothing: "any".
    """
    library = type(column).__module__.partition(".")[0]
    if library == "pyarrow":
        return _arrow_kind(getattr(column, "type", column))
    if library == "polars":
        return "nested" if column.dtype.is_nested() else "time" if column.dtype.is_temporal() else "any"
    return "any"


def check_numeric(column: Any, name: object) -> None:
    """Refuse a column that as a whole is text, dates, categories or lists where nothing says what these mean.

    Guarantee:
        Only the type of the column is looked at: a fact of the container, which is not protected (docs/privacy.md). A
        column of objects has no such type, and is read cell by cell.
    """
    holds = _no_numbers(column)
    if holds is not None:
        few = ' (type = "categorical" with its categories, where these are few)' if holds == "text" else ""
        short = f'Say AutoClassifier(text=["{name}"]), or declare' if holds == "text" else "Declare"
        raise InvalidInput(
            f"{name} is a column of {holds}: expected numbers, as no schema says what else it means. {short} it, as "
            f"[{toml.header(str(name))}] of a schema or by one line at its top{few}, or encode or drop "
            f"it:{toml.indent([toml.line(str(name), _DECLARED[holds])])}"
        )


def plain_arrow(array: Any) -> Cells:
    """The cells of an arrow array, by its type alone."""
    import pyarrow as pa

    types = pa.types
    if isinstance(array, pa.ChunkedArray):
        chunks = [plain_arrow(chunk) for chunk in array.chunks]
        same = len({chunk.dtype for chunk in chunks}) == 1
        return np.concatenate(chunks if same else [chunk.astype(object) for chunk in chunks]) if chunks else objects([])
    if types.is_dictionary(array.type):
        values = plain_arrow(array.dictionary)
        places = array.indices.cast("int64").fill_null(len(values))
        return _take(values, places.to_numpy(zero_copy_only=False))
    if _is_numbers(array.type):
        return _arrow_rows(array)
    if types.is_floating(array.type) or (types.is_integer(array.type) and not array.null_count):
        return np.asarray(array.to_numpy(zero_copy_only=False))
    return objects(_to_list(array))


def _is_numbers(dtype: Any) -> bool:
    """Whether an arrow type is that of lists of numbers."""
    from pyarrow import types

    lists = types.is_list(dtype) or types.is_large_list(dtype) or types.is_fixed_size_list(dtype)
    return bool(lists and (types.is_floating(dtype.value_type) or types.is_integer(dtype.value_type)))


def _arrow_rows(array: Any) -> Cells:
    """Lists of numbers as arrays, None for a missing one, without a Python object for each number."""
    numbers = array.flatten().to_numpy(
        zero_copy_only=False
    )  # of the lists that are there; nan where one lacks a number
    ends = np.cumsum(array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False))
    there = array.is_valid().to_numpy(zero_copy_only=False)
    starts = np.concatenate([[0], ends[:-1]]).tolist() if len(array) else []
    ends = ends.tolist()
    return objects(
        numbers[start:end] if valid else None for start, end, valid in zip(starts, ends, there.tolist(), strict=True)
    )


def _arrow_kind(dtype: Any) -> str:
    from pyarrow import types

    if types.is_dictionary(dtype):
        return _arrow_kind(dtype.value_type)
    if types.is_nested(dtype):
        return "nested"
    return "time" if types.is_temporal(dtype) else "any"


def _no_numbers(column: Any) -> str | None:
    """What a column holds by its type, where that is no kind of number."""
    library = type(column).__module__.partition(".")[0]
    if library == "pyarrow":
        return _arrow_holds(column.type)
    if library == "polars":
        numeric = column.dtype.is_numeric() or str(column.dtype) in ("Boolean", "Null", "Object")
        return None if numeric else _arrow_holds(column.head(0).to_arrow().type)
    return _dtype_holds(column.dtype)


def _dtype_holds(dtype: Any) -> str | None:
    """What a type of numpy or pandas holds."""
    if hasattr(dtype, "pyarrow_dtype"):
        return _arrow_holds(dtype.pyarrow_dtype)
    if isinstance(dtype, np.dtype):
        return {"U": "text", "S": "text", "T": "text", "M": "dates", "m": "dates", "V": "lists"}.get(dtype.kind)
    if getattr(dtype, "kind", "O") in "fiubc":  # numbers that may be missing, or sparse ones
        return None
    return {"category": "categories", "string": "text", "str": "text"}.get(str(dtype.name), "dates")


def _arrow_holds(dtype: Any) -> str | None:
    from pyarrow import types

    if types.is_dictionary(dtype):
        return "categories"
    if types.is_nested(dtype):
        return "lists"
    if types.is_temporal(dtype):
        return "dates"
    numeric = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)
    return None if any(test(dtype) for test in numeric) else "text"


def _pandas(column: Any) -> Cells:
    import pandas as pd

    column = pd.Series(column)  # of an index or an array of pandas too
    if isinstance(column.dtype, pd.CategoricalDtype):
        return _take(np.asarray(column.cat.categories, dtype=object), column.cat.codes.to_numpy())
    if hasattr(column.dtype, "pyarrow_dtype"):
        import pyarrow as pa

        return plain_arrow(pa.array(column))
    values = column.to_numpy()
    return values if values.dtype.kind in "fiubO" else np.asarray(column.to_numpy(dtype=object))


def _times(column: Cells) -> Cells:
    """Dates and times as Python's own; numpy would give numbers for what these cannot hold."""
    if np.datetime_data(column.dtype)[0] in _FINE:
        column = column.astype("M8[us]")
    held = (datetime.date, type(None))
    return objects(cell if isinstance(cell, held) else UNREADABLE for cell in column.tolist())


def _to_list(array: Any) -> list[Any]:
    listed: list[Any] | None = attempt(array.to_pylist, otherwise=None)
    if listed is None:  # one cell cannot be written as a Python value: take each by itself
        return [attempt(lambda at: array[at].as_py(), place, otherwise=UNREADABLE) for place in range(len(array))]
    return listed


def objects(values: Iterable[Any]) -> Cells:
    """Python values as an array, each one cell: numpy would look inside those that are lists.

    >>> objects([[1, 2], [3, 4]]).shape
    (2,)
    """
    return np.fromiter(values, dtype=object)


def _take(values: Cells, places: NDArray[np.integer[Any]]) -> Cells:
    """Values by place, where the place after the last, or -1, is missing."""
    return np.asarray(objects([*values.tolist(), None])[places])
