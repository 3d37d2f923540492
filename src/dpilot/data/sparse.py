"""Rows that are mostly 0, such as hashed words, held by their entries and made dense some at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dpilot._arrays import Indices

__all__ = ["SparseRows", "SparseRowsBuilder", "is_usable", "null_out"]

Dense = NDArray[np.float32]

_ROWS: Final = 1 << 14  # looked at in one go


@dataclass(frozen=True, slots=True, eq=False)
class SparseRows:
    """``width`` columns of float32: those of ``places`` as an array, the others by the entries that are not 0.

    Row i has ``values[j] * scales[i]`` in column ``columns[j]`` for its ``counts[i]`` entries j from ``starts[i]`` on,
    and ``others[i]`` in the columns ``places``. A row whose scale is nan is the null record: all of it is nan.

    ``rows[places]`` is some of them, in that order, and shares the entries: a split of a table copies none.

    >>> rows = SparseRows.of(np.array([0, 2]), np.array([1.0, 2.0]), np.array([1, 1, 0]), np.ones((3, 1)), [1], 3)
    >>> rows[[1, 0, 2]].toarray().tolist()
    [[0.0, 1.0, 2.0], [1.0, 1.0, 0.0], [0.0, 1.0, 0.0]]
    """

    columns: NDArray[np.unsignedinteger[Any]]
    values: Dense
    starts: NDArray[np.int64]
    counts: NDArray[np.int32]
    scales: Dense
    others: Dense
    places: Indices
    width: int

    @classmethod
    def of(cls, columns: Any, values: Any, counts: Any, others: Any, places: Any, width: int) -> SparseRows:
        """Rows of scale 1 whose entries lie one behind the other."""
        lengths = np.asarray(counts, dtype=np.int32)
        starts = np.cumsum(lengths, dtype=np.int64) - lengths
        small = np.uint16 if width <= 1 << 16 else np.uint32
        return cls(
            np.asarray(columns).astype(small), np.asarray(values, dtype=np.float32), starts, lengths,
            np.ones(len(lengths), dtype=np.float32), np.asarray(others, dtype=np.float32), np.asarray(places), width,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.width

    @property
    def nbytes(self) -> int:
        """What the entries and other columns of these rows take."""
        each = self.columns.itemsize + self.values.itemsize
        own = (self.starts, self.counts, self.scales, self.others)
        return int(self.counts.sum(dtype=np.int64)) * each + sum(array.nbytes for array in own)

    @property
    def usable(self) -> NDArray[np.bool_]:
        """Which rows are more than the null record."""
        return ~np.isnan(self.scales)

    def __getitem__(self, rows: Any) -> SparseRows:
        chosen = np.asarray(rows) if not isinstance(rows, slice) else rows
        return replace(
            self, starts=self.starts[chosen], counts=self.counts[chosen], scales=self.scales[chosen],
            others=self.others[chosen],
        )  # fmt: skip

    def scale(self, scales: Dense, others: Dense, places: Indices, width: int) -> SparseRows:
        """The same entries, each row's times its scale, beside other columns."""
        return replace(self, scales=self.scales * scales, others=others, places=places, width=width)

    def square_lengths(self) -> NDArray[np.float64]:
        """The squared length of the entries of each row, whatever lies beside them; nan for a null record."""
        found = np.zeros(len(self))
        for start in range(0, len(self), _ROWS):
            part = self[start : start + _ROWS]
            filled = np.flatnonzero(part.counts)
            if len(filled):  # each sum over its own entries alone, in their order
                begins = (np.cumsum(part.counts) - part.counts)[filled]
                found[start + filled] = np.add.reduceat(part._entries(self.values).astype(np.float64) ** 2, begins)
        return np.asarray(found * self.scales.astype(np.float64) ** 2)

    def toarray(self) -> Dense:
        """The rows as an array."""
        ends = np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int32)
        values = self._entries(self.values) * np.repeat(self.scales, self.counts)
        columns = self._entries(self.columns).astype(np.int32)
        dense: Dense = csr_array((values, columns, ends), shape=self.shape).toarray()
        dense[:, self.places] = self.others
        dense[~self.usable] = np.nan
        return dense

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        del copy
        return self.toarray().astype(dtype or np.float32, copy=False)

    def _entries(self, held: NDArray[Any]) -> NDArray[Any]:
        """What ``held`` has for the entries of these rows, one row behind the other, by runs of rows that lie so."""
        ends = self.starts + self.counts
        breaks = np.flatnonzero(self.starts[1:] != ends[:-1])
        first = self.starts[np.concatenate([[0], breaks + 1])] if len(self) else ()
        last = ends[np.concatenate([breaks, [len(self) - 1]])] if len(self) else ()
        return np.concatenate([held[:0], *(held[a:b] for a, b in zip(first, last, strict=True))])


class SparseRowsBuilder:
    """Rows of pieces that ``of`` made, behind one another, their entries never held twice: arrays grow in place."""

    def __init__(self) -> None:
        self._pieces = list[SparseRows]()
        self._columns: NDArray[Any] = np.empty(0, dtype=np.uint16)
        self._values: Dense = np.empty(0, dtype=np.float32)

    def append(self, piece: SparseRows) -> None:
        held = len(self._values)
        if not self._pieces:
            self._columns = np.empty(0, dtype=piece.columns.dtype)
        for kept, new in ((self._columns, piece.columns), (self._values, piece.values)):
            kept.resize(held + len(new), refcheck=False)
            kept[held:] = new
        none = self._columns[:0].copy(), self._values[:0].copy()
        self._pieces.append(replace(piece, columns=none[0], values=none[1], starts=piece.starts + held))

    def build(self) -> SparseRows:
        return replace(
            self._pieces[0],
            columns=self._columns,
            values=self._values,
            starts=np.concatenate([piece.starts for piece in self._pieces]),
            counts=np.concatenate([piece.counts for piece in self._pieces]),
            scales=np.concatenate([piece.scales for piece in self._pieces]),
            others=np.concatenate([piece.others for piece in self._pieces]),
        )


def is_usable(rows: Any) -> NDArray[np.bool_]:
    """Which encoded rows are more than the null record: all their values are finite."""
    return rows.usable if isinstance(rows, SparseRows) else np.asarray(np.isfinite(rows).all(axis=1))


def null_out(rows: Any, null: NDArray[np.bool_]) -> None:
    """Make encoded rows null records, in place."""
    if isinstance(rows, SparseRows):
        rows.scales[null] = np.nan
    else:
        rows[null] = np.nan
