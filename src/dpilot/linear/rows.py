"""The records of a regression: finite rows of [features | target], read in chunks as often as a method asks.

A method sees its data through sums over chunks only, so a table in memory and a table on disk give the same model.

Where a unit (a person, a device) has several rows, ``chunks`` yields one of them, drawn uniformly: a method that knows
nothing of units sees a table in which a unit is one record. ``unit_chunks`` yields all rows that count, those of a unit
together, to those that make one bounded vector of each unit, by the mean of its rows: ``gram_matrix`` and
``row_gradients``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from dpilot._arrays import Floats, Indices
from dpilot.data.units import UnitRows

__all__ = ["MappedRows", "MemoryRows", "Rows", "UnitChunk", "finite_rows", "rechunk", "total", "unit_total"]


CHUNK: Final = 1 << 16
"""Rows that are added up at a time."""


@dataclass(frozen=True, slots=True)
class UnitChunk:
    """Rows of whole units, and the first row of each unit, ascending; None: each row is a unit.

    >>> chunk = UnitChunk(np.array([[1.0], [3.0], [4.0]]), np.array([0, 2]))
    >>> chunk.sizes.tolist(), chunk.means(chunk.values).tolist(), [len(part.values) for part in chunk.split(1)]
    ([2, 1], [[2.0], [4.0]], [2, 1])
    """

    values: Floats
    starts: Indices | None = None

    @property
    def drawn(self) -> Floats:
        """The first row of each unit."""
        return self.values if self.starts is None else self.values[self.starts]

    @property
    def sizes(self) -> Indices:
        """How many rows each unit has."""
        if self.starts is None:
            return np.ones(len(self.values), dtype=np.int64)
        return np.diff(self.starts, append=len(self.values))

    def means(self, rows: Floats) -> Floats:
        """The mean over each unit of ``rows``, which are one for each row of the chunk."""
        assert self.starts is not None
        if not len(self.starts):  # which reduceat does not take
            return rows
        return np.asarray(np.add.reduceat(rows, self.starts, axis=0) / self.sizes[:, None])

    def split(self, rows: int) -> Iterator[UnitChunk]:
        """The chunk in pieces of whole units, of about so many rows each."""
        assert self.starts is not None
        cuts = np.flatnonzero(np.diff(self.starts // max(rows, 1), prepend=-1)).tolist()
        ends = np.append(self.starts, len(self.values)).tolist()
        for first, last in pairwise([*cuts, len(self.starts)]):
            begin = ends[first]
            yield UnitChunk(self.values[begin : ends[last]], self.starts[first:last] - begin)

    def map(self, function: Callable[[Floats], Floats]) -> UnitChunk:
        """Each row by itself."""
        return UnitChunk(function(self.values), self.starts)


class Rows(Protocol):
    """A table that can be read again and again; a row with a value that is not finite never comes out.

    ``map`` takes functions of each row by itself.
    """

    @property
    def columns(self) -> int: ...

    def chunks(self) -> Iterator[Floats]:
        """One row of each unit: a unit is one record."""
        ...

    def unit_chunks(self) -> Iterator[UnitChunk]:
        """All rows that count, each unit in one chunk."""
        ...

    def map(self, function: Callable[[Floats], Floats], columns: int) -> Rows: ...


@dataclass(frozen=True, slots=True)
class MemoryRows:
    """Rows of one array in memory.

    Guarantee:
        A record with a value that is not finite is the null record: it is left out here, before any product.

    Example:
        >>> table = MemoryRows.of(np.array([[1.0, 2.0], [np.nan, 3.0], [4.0, 5.0]]))
        >>> total(table, lambda rows: rows.sum(axis=0)).tolist()
        [5.0, 7.0]
        >>> two = UnitRows(places=np.array([2, 0]), units=np.array([0, 0]), count=1)  # two rows of one person
        >>> rows = MemoryRows.of(np.array([[1.0, 2.0], [3.0, 3.0], [4.0, 5.0]]), two)
        >>> [chunk.tolist() for chunk in rows.chunks()], [chunk.values.tolist() for chunk in rows.unit_chunks()]
        ([[[4.0, 5.0]]], [[[4.0, 5.0], [1.0, 2.0]]])
    """

    chunk: UnitChunk

    @classmethod
    def of(cls, table: Floats, units: UnitRows | None = None) -> MemoryRows:
        """The finite rows of ``table``, each a record of its own, or with ``units`` those of each unit that count.

        ``units.places`` are rows of ``table``; what of a unit is not finite is left out, and the mean of the unit is
        that of its other rows.
        """
        finite = finite_rows(table)
        if units is None:
            # in one layout, in which norms are added up: another where all are finite would tell all of a null one
            return cls(UnitChunk(np.ascontiguousarray(table if finite.all() else table[finite])))
        kept = finite[units.places]
        starts = np.flatnonzero(np.diff(units.units[kept], prepend=-1))
        return cls(UnitChunk(np.ascontiguousarray(table[units.places[kept]]), starts))

    @property
    def columns(self) -> int:
        return int(self.chunk.values.shape[1])

    def chunks(self) -> Iterator[Floats]:
        return (chunk.drawn for chunk in self.unit_chunks())

    def unit_chunks(self) -> Iterator[UnitChunk]:
        return rechunk(iter([self.chunk]))

    def map(self, function: Callable[[Floats], Floats], columns: int) -> MemoryRows:
        del columns  # an array knows its own
        return MemoryRows(self.chunk.map(function))


@dataclass(frozen=True, slots=True)
class MappedRows:
    """Other rows, each put through ``function``, chunk by chunk as they are read."""

    rows: Rows
    function: Callable[[Floats], Floats]
    columns: int

    def chunks(self) -> Iterator[Floats]:
        return map(self.function, self.rows.chunks())

    def unit_chunks(self) -> Iterator[UnitChunk]:
        return (chunk.map(self.function) for chunk in self.rows.unit_chunks())

    def map(self, function: Callable[[Floats], Floats], columns: int) -> MappedRows:
        return MappedRows(self, function, columns)


def rechunk(chunks: Iterator[UnitChunk]) -> Iterator[UnitChunk]:
    """The same units, those whose first row is among the same 2^16 rows in one chunk: however they come, sums round
    alike. One chunk at least, if there is one.
    """
    held, start = next(chunks), 0  # ``start``: how many rows lie before those that are held
    for more in chain(chunks, [None]):
        pieces = list(_cut(held, start))
        yield from pieces[:-1]
        start += sum(len(piece.values) for piece in pieces[:-1])
        if more is None:
            yield pieces[-1]
        else:
            held = _join(pieces[-1], more)


def _cut(chunk: UnitChunk, before: int) -> Iterator[UnitChunk]:
    """The chunk in pieces, where ``before`` rows lie before it."""
    if chunk.starts is None:
        places = units = [0, *range(-before % CHUNK or CHUNK, len(chunk.values), CHUNK), len(chunk.values)]
    else:
        cuts = np.flatnonzero(np.diff((chunk.starts + before) // CHUNK)) + 1
        places = [0, *chunk.starts[cuts].tolist(), len(chunk.values)]
        units = [0, *cuts.tolist(), len(chunk.starts)]
    for (first, last), (begin, end) in zip(pairwise(places), pairwise(units), strict=True):
        own = None if chunk.starts is None else chunk.starts[begin:end] - first
        yield UnitChunk(chunk.values[first:last], own)


def _join(one: UnitChunk, other: UnitChunk) -> UnitChunk:
    if not len(one.values):
        return other
    values = np.concatenate([one.values, other.values])
    if one.starts is None or other.starts is None:
        return UnitChunk(values)
    return UnitChunk(values, np.concatenate([one.starts, other.starts + len(one.values)]))


def finite_rows(table: Floats) -> NDArray[np.bool_]:
    """Which rows have finite values only: the others are null records."""
    return np.asarray(np.isfinite(table).all(axis=1))


def total(rows: Rows, function: Callable[[Floats], Floats]) -> Floats:
    """The sum of ``function`` over the chunks, a unit being one record: exact and sensitive, for the door only."""
    return np.asarray(sum(function(chunk) for chunk in rows.chunks()), dtype=np.float64)


def unit_total(rows: Rows, function: Callable[[UnitChunk], Floats]) -> Floats:
    """The sum of ``function`` over chunks of whole units, of which it bounds each: for the door only.

    Rows in partitions are added up where they lie, each partition once (``linear.partitions``).
    """
    if isinstance(rows, MappedRows):
        change = rows.function  # alone: a task of partitions goes to other processes, which the rows' scheduler cannot
        return unit_total(rows.rows, lambda chunk: function(chunk.map(change)))
    if (sum_chunks := getattr(rows, "sum_chunks", None)) is not None:
        return np.asarray(sum_chunks(function), dtype=np.float64)
    return np.asarray(sum(function(chunk) for chunk in rows.unit_chunks()), dtype=np.float64)
