"""Arrays that do not fit in memory: rows in files without names, read some at a time, and sorted by a number.

A file without a name belongs to whoever has it open, and is gone when they are, after a crash or a kill too: nothing is
left to find or to delete. TMPDIR says on which disk its blocks lie.

>>> builder = DiskArrayBuilder(np.float64, (2,))
>>> builder.append(np.arange(6.0).reshape(3, 2))
>>> rows = builder.build()
>>> rows.shape, rows[1:].tolist(), rows[np.array([2, 0])].tolist()
((3, 2), [[2.0, 3.0], [4.0, 5.0]], [[4.0, 5.0], [0.0, 1.0]])
>>> sort = DiskSort(10, rows=3, dtype=np.dtype(np.int64))
>>> sort.add(np.array([7, 1, 7]), np.array([70, 10, 71]))
>>> [(keys.tolist(), found.tolist()) for keys, found in sort.chunks()]
[([1, 7, 7], [10, 70, 71])]
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Iterator
from tempfile import TemporaryFile
from typing import Any, Final, final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dpilot._arrays import Indices
from dpilot.errors import InvalidInput

__all__ = ["Buckets", "DiskArray", "DiskArrayBuilder", "DiskSort", "blocks_of", "map_rows"]

_BUCKET: Final = 1 << 22  # bytes of a bucket, about, up to
_MOST_BUCKETS: Final = 1 << 10
_MOST_READ: Final = 1 << 20  # bytes that are held twice
_PIECE: Final = 1 << 16  # rows of a bucket that are read at a time


class _Owned:
    """A file that is closed with this; one without a name is gone then."""

    def __init__(self, file: Any) -> None:
        self.fileno, self.write = file.fileno, file.write
        weakref.finalize(self, file.close)


@final
class DiskArray:
    """Rows in a file, as an array has them: what is asked for is read, and nothing stays in memory.

    ``array[start:stop]`` and ``array[places]`` are arrays in memory; ``np.asarray(array)`` is all of it.

    Edge cases:
        places of neighbours    are read together; rows are read in the order of ``places``
        pickled, copied         refused by the file that it holds
    """

    __slots__ = ("_file", "_offset", "dtype", "shape")

    def __init__(self, file: Any, dtype: DTypeLike, shape: tuple[int, ...], offset: int = 0) -> None:
        self._file, self._offset = file, offset
        self.dtype, self.shape = np.dtype(dtype), shape

    @classmethod
    def open(cls, path: str, dtype: DTypeLike, shape: tuple[int, ...], offset: int = 0) -> DiskArray:
        """Rows that lie in a file of the caller's, from ``offset`` on."""
        return cls(_Owned(open(path, "rb", buffering=0)), dtype, shape, offset)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            return self._read(start, max(stop - start, 0))[::step] if step > 0 else np.asarray(self)[rows]
        places = np.asarray(rows)
        if places.dtype == np.bool_:
            places = np.flatnonzero(places)
        if places.ndim == 0:
            place = int(places) + (len(self) if places < 0 else 0)
            if not 0 <= place < len(self):
                raise IndexError(f"row {int(places)} of {len(self)}")
            return np.asarray(self._read(place, 1)[0])
        return self._gather(places.astype(np.int64, copy=False))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        del copy
        return self[:].astype(dtype or self.dtype, copy=False)

    @property
    def _size(self) -> int:
        """Bytes of a row."""
        return self.dtype.itemsize * math.prod(self.shape[1:])

    def _read(self, start: int, count: int) -> NDArray[Any]:
        found = np.empty((count, *self.shape[1:]), self.dtype)
        self._fill(_bytes(found), start * self._size)
        return found

    def _gather(self, places: Indices) -> NDArray[Any]:
        if places.size and not 0 <= places.min() <= places.max() < len(self):
            raise IndexError(f"a row beyond {len(self)}")
        found = np.empty((len(places), *self.shape[1:]), self.dtype)
        if not found.size:
            return found
        starts = np.flatnonzero(np.diff(places, prepend=-2) != 1)  # of runs that lie side by side
        view, size = _bytes(found), self._size
        ends = np.append(starts[1:], len(places))
        runs = zip((starts * size).tolist(), (ends * size).tolist(), (places[starts] * size).tolist(), strict=True)
        for start, end, offset in runs:
            self._fill(view[start:end], offset)
        return found

    def _fill(self, view: memoryview, offset: int) -> None:
        """Read what fills ``view``, from ``offset`` on in the rows."""
        number, place = self._file.fileno(), 0
        while place < len(view):
            some = os.pread(number, min(len(view) - place, _MOST_READ), self._offset + offset + place)
            if not some:
                raise OSError("a file ends before its rows")
            view[place : place + len(some)] = some
            place += len(some)


@final
class DiskArrayBuilder:
    """Rows that are appended to a file without a name; ``shape`` is that of a row."""

    def __init__(self, dtype: DTypeLike, shape: tuple[int, ...] = ()) -> None:
        self._file = _Owned(TemporaryFile(prefix="dpilot-", buffering=0))  # noqa: SIM115, as it stays open
        self._dtype, self._shape, self._length = np.dtype(dtype), shape, 0

    def __len__(self) -> int:
        return self._length

    def append(self, rows: NDArray[Any]) -> None:
        """Some more rows."""
        _write(self._file, np.ascontiguousarray(rows, dtype=self._dtype))
        self._length += len(rows)

    def build(self) -> DiskArray:
        return DiskArray(self._file, self._dtype, (self._length, *self._shape))


@final
class Buckets:
    """Rows of one type kept apart by the number of their bucket, in one file; those of a bucket in their order."""

    def __init__(self, count: int, dtype: np.dtype[Any]) -> None:
        self.count, self._rows = count, DiskArrayBuilder(dtype)
        self._ends = list[Indices]()  # of the buckets of each piece that was added

    def add(self, buckets: Indices, rows: NDArray[Any]) -> None:
        order = np.argsort(buckets, kind="stable")
        ends = np.searchsorted(buckets[order], np.arange(self.count + 1))
        self._ends.append(ends + len(self._rows))
        self._rows.append(rows[order])

    def length(self, bucket: int) -> int:
        """How many rows a bucket has."""
        return sum(int(ends[bucket + 1] - ends[bucket]) for ends in self._ends)

    def read(self, bucket: int, rows: int = _PIECE) -> Iterator[NDArray[Any]]:
        """The rows of a bucket, about ``rows`` at a time."""
        held, waiting, stored = list[NDArray[Any]](), 0, self._rows.build()
        for ends in self._ends:
            start, stop = int(ends[bucket]), int(ends[bucket + 1])
            for place in range(start, stop, rows):
                held.append(stored[place : min(place + rows, stop)])
                waiting += len(held[-1])
                if waiting >= rows:
                    yield np.concatenate(held)
                    held, waiting = [], 0
        if held:
            yield np.concatenate(held)


@final
class DiskSort:
    """Rows in the order of whole numbers from 0 to ``end`` (not included); rows of one number in the order they came.

    ``rows`` is about how many there will be. Memory holds a bucket of 4 to 8 MiB, of up to 1,024, a few times: one that
    numbers crowd into is sorted by way of buckets of its own, so only the rows of a single number are never split.
    """

    def __init__(self, end: int, *, rows: int, dtype: np.dtype[Any]) -> None:
        self._row = np.dtype([("key", "<i8"), ("row", dtype)])
        count = min(max(-(-rows * self._row.itemsize // _BUCKET), 1), _MOST_BUCKETS)
        self._width = max(-(-end // count), 1)
        self._buckets = Buckets(count, self._row)

    def add(self, keys: Indices, rows: NDArray[Any]) -> None:
        made = np.empty(len(keys), self._row)
        made["key"], made["row"] = keys, rows
        self._buckets.add(keys // self._width, made)

    def chunks(self) -> Iterator[tuple[Indices, NDArray[Any]]]:
        """Keys and rows, ascending, a bucket at a time."""
        for number in range(self._buckets.count):
            count = self._buckets.length(number)
            if count * self._row.itemsize > 2 * _BUCKET and self._width > 1:
                yield from self._sort_apart(number, count)
            elif count:
                yield self._sort(number, count)

    def _sort(self, number: int, count: int) -> tuple[Indices, NDArray[Any]]:
        """The ``count`` rows of a bucket, and their keys."""
        rows, place = np.empty(count, self._row), 0
        for some in self._buckets.read(number):
            rows[place : place + len(some)] = some
            place += len(some)
        order = np.argsort(rows["key"], kind="stable")
        return rows["key"][order], rows["row"][order]

    def _sort_apart(self, number: int, count: int) -> Iterator[tuple[Indices, NDArray[Any]]]:
        """The chunks of a bucket of ``count`` rows, too many to sort at once."""
        first, finer = number * self._width, DiskSort(self._width, rows=count, dtype=self._row["row"])
        for rows in self._buckets.read(number):
            finer.add(rows["key"] - first, rows["row"])
        for keys, found in finer.chunks():
            yield keys + first, found


def blocks_of(rows: Any, most: int) -> Iterator[Any]:
    """The rows of an array, in memory or on disk, at most so many at a time; one block where there are none."""
    return (rows[start : start + most] for start in range(0, max(len(rows), 1), most))


def map_rows(function: Callable[..., Any], *arrays: Any, most: int = _PIECE) -> Any:
    """What ``function``, which treats each row by itself, makes of arrays of equal length: ``most`` at a time, on disk,
    where the first of them lies there.
    """
    if not isinstance(arrays[0], DiskArray):
        return function(*arrays)
    builder: DiskArrayBuilder | None = None
    for pieces in zip(*(blocks_of(array, most) for array in arrays), strict=True):
        made = function(*pieces)
        builder = DiskArrayBuilder(made.dtype, made.shape[1:]) if builder is None else builder
        builder.append(made)
    assert builder is not None
    return builder.build()


def _bytes(rows: NDArray[Any]) -> memoryview:
    return memoryview(rows.reshape(-1).view(np.uint8).data) if rows.nbytes else memoryview(b"")


def _write(file: _Owned, rows: NDArray[Any]) -> None:
    view = _bytes(rows)
    try:
        while len(view):
            view = view[file.write(view) :]
    except OSError as problem:
        reason = problem.strerror or "it failed"
        raise InvalidInput(
            f"rows cannot be written to a temporary file ({reason}): expected room on its disk. TMPDIR names another."
        ) from None
