"""The records a statistic sees: finite float64 rows, one chunk at a time, and the clips that bound them.

A record with a value that is not finite is the null record: it is dropped here, before any product, so that it
contributes nothing to any sum, silently. What has no finite meaning at all (text, dates) is the schema's business.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpilot._arrays import Floats
from dpilot.errors import InvalidInput

Data = NDArray[np.generic] | Iterator[NDArray[np.generic]]

_SHAVE: Final = 1 - 1e-12  # so that rounding cannot carry a clipped row over its bound
_BLOCK: Final = 1 << 16  # rows worked on at a time: temporaries stay small, whatever the size of the table


def parts(data: Data) -> Iterator[Floats]:
    """The finite rows of ``data``, as (n, d) float64 chunks.

    ``data`` is an (n, d) or (n,) numpy array of numbers, or an iterator of such arrays: a table in pieces, which gives
    the same sums without being held at once.

    Edge cases:
        An iterator yields at least one array, which may have no rows: that is how the number of columns is known.
        The type and the number of columns are facts of the table, and raise; no value in it ever does.
    """
    columns = None
    for chunk in data if isinstance(data, Iterator) else (data,):
        rows = _table(chunk)
        if columns not in (None, rows.shape[1]):
            raise InvalidInput(f"a chunk has {rows.shape[1]} columns: expected {columns}, as the first one has.")
        columns = rows.shape[1]
        for start in range(0, max(rows.shape[0], 1), _BLOCK):
            block = np.asarray(rows[start : start + _BLOCK])
            yield block[np.isfinite(block).all(axis=1)]
    if columns is None:
        raise InvalidInput("data yields no array: expected at least one, with the columns and perhaps no rows.")


@np.errstate(all="ignore")  # whatever a caller has set: no number of a record may raise or warn
def into_ball(rows: Floats, radius: float) -> Floats:
    """Each row scaled down to an L2 norm of at most ``radius``; rows inside are kept as they are.

    Guarantee:
        |row|_2 <= radius for every finite row: norms are taken relative to the largest entry, so that none overflows
        or vanishes, and the radius is shaved by 1e-12 against rounding.
    """
    # |row| = largest |direction| and 1 <= |direction| <= sqrt(d): neither square overflows or vanishes.
    # tests/statistics/test_values.py::test_the_ball_holds_every_row_and_keeps_those_inside.
    largest = np.abs(rows).max(axis=1, keepdims=True, initial=0.0)
    direction = rows / np.where(largest > 0, largest, 1.0)
    limit = radius * _SHAVE / np.maximum(np.linalg.norm(direction, axis=1, keepdims=True), 1.0)
    return np.where(largest <= limit, rows, direction * limit)


@np.errstate(all="ignore")
def into_box(rows: Floats, lower: Floats | float, upper: Floats | float) -> Floats:
    """Each value clipped to its declared interval, then measured from the interval's middle.

    Guarantee:
        |result| <= (upper - lower) / 2 in every column: it is clipped again after the subtraction, which may round.
    """
    half = (np.asarray(upper) - np.asarray(lower)) / 2
    centred = np.clip(rows, lower, upper) - (lower + half)
    return np.asarray(np.clip(centred, -half * _SHAVE, half * _SHAVE))


def check_increasing(name: str, points: Sequence[float] | Floats) -> Floats:
    """Declared points as an array: at least two, finite, strictly increasing."""
    values = np.asarray(points, dtype=np.float64)
    if values.ndim != 1 or values.size < 2 or not (np.isfinite(values).all() and (values[1:] > values[:-1]).all()):
        raise InvalidInput(f"{name} are {points!r}: expected at least two finite numbers, each above the one before.")
    return values


def only_column(rows: Floats) -> Floats:
    """The one column of ``rows``."""
    if rows.shape[1] != 1:
        raise InvalidInput(
            f"data has {rows.shape[1]} columns: expected one. Ask for each column, with its own receipt."
        )
    return rows[:, 0]


@np.errstate(all="ignore")  # whatever a caller has set: no number of a record may raise or warn
def real_numbers(values: Any, what: str) -> Floats:
    """Numbers of records as float64; refused where their type as a whole is another, in words that tell of no record.

    >>> real_numbers([1, 0.5, True], "targets").tolist()
    [1.0, 0.5, 1.0]
    """
    try:
        array = np.asarray(values)
    except ValueError:  # rows of several widths, of which numpy says how many there are
        array = np.asarray(None)
    if array.dtype.kind not in "fiub" or isinstance(values, np.ma.MaskedArray):  # whose mask would be forgotten
        raise InvalidInput(f"{what} are no array of real numbers: expected one. Encode them first.")
    return np.asarray(array, dtype=np.float64)


def _table(chunk: object) -> Floats:
    plain = isinstance(chunk, np.ndarray) and not isinstance(chunk, np.ma.MaskedArray)
    if not plain or chunk.dtype.kind not in "fiub" or chunk.ndim not in (1, 2):  # type: ignore[attr-defined]
        what = type(chunk).__name__
        if plain:
            kind = chunk.dtype.type.__name__  # type: ignore[attr-defined]  # without the length of the longest text
            what = f"{kind} array of {chunk.ndim} dimensions"  # type: ignore[attr-defined]
        raise InvalidInput(f"data is a {what}: expected a numpy array of numbers, (n,) or (n, d). Encode it first.")
    with np.errstate(over="ignore", invalid="ignore"):  # a wider float that does not fit becomes infinite, and null
        rows = np.asarray(chunk, dtype=np.float64)
    return rows[:, None] if rows.ndim == 1 else rows
