"""The records of a regression: finite rows of [features | target], read in chunks as often as a method asks.

A method sees its data through sums over chunks only, so a table in memory and a table on disk give the same model.

Where a unit (a person, a device) has several rows, ``chunks`` yields one of them, drawn uniformly: a method that knows
nothing of units sees a table in which a unit is one record. ``weighted_chunks`` yields all rows that count, each
with its share of its unit. A mean of vectors no longer than b is no longer than b, so a sum of bounded rows times their
shares moves by at most the bound when a unit comes or goes::

    | sum over a unit's rows of share_i v_i |  <=  sum share_i |v_i|  <=  b,      share_i >= 0,  sum share_i <= 1

Only what clips each row before it is weighted may ask for them: ``gram_matrix`` and ``row_gradients``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from dpilot._arrays import Floats
from dpilot.data.units import UnitRows

__all__ = ["MemoryRows", "Rows", "finite_rows", "products", "total", "weighted_total", "whiten"]

_ROWS: Final = 512  # multiplied at a time


class Rows(Protocol):
    """A table that can be read again and again; a row with a value that is not finite never comes out.

    ``map`` takes functions of each row by itself.
    """

    @property
    def columns(self) -> int: ...

    def chunks(self) -> Iterator[Floats]:
        """One row of each unit: a unit is one record."""
        ...

    def weighted_chunks(self) -> Iterator[tuple[Floats, Floats]]:
        """All rows that count, and the share of each: those of one unit add up to 1 at most."""
        ...

    def map(self, function: Callable[[Floats], Floats], columns: int) -> Rows: ...


@dataclass(frozen=True, slots=True)
class MemoryRows:
    """Rows of one array in memory: those that count, the share of each in its unit, and which one of a unit is drawn.

    Guarantee:
        A record with a value that is not finite is the null record: it is left out here, before any product.

    Example:
        >>> table = MemoryRows.of(np.array([[1.0, 2.0], [np.nan, 3.0], [4.0, 5.0]]))
        >>> total(table, lambda rows: rows.sum(axis=0)).tolist()
        [5.0, 7.0]
        >>> twice = UnitRows(places=np.array([2, 0]), units=np.array([0, 0]), count=1)  # two rows of one person
        >>> rows = MemoryRows.of(np.array([[1.0, 2.0], [3.0, 3.0], [4.0, 5.0]]), twice)
        >>> [chunk.tolist() for chunk in rows.chunks()], [shares.tolist() for _, shares in rows.weighted_chunks()]
        ([[[4.0, 5.0]]], [[0.5, 0.5]])
    """

    values: Floats
    shares: Floats
    drawn: NDArray[np.bool_] | None = None  # None: every row, each being a record

    @classmethod
    def of(cls, table: Floats, units: UnitRows | None = None) -> MemoryRows:
        """The finite rows of ``table``: each a record of its own, or the rows of ``units`` that count.

        ``units.places`` are places in ``table``. A row that is not finite leaves its share to nobody; where it is the
        one that was drawn, ``chunks`` lacks its unit. ``group_rows(..., usable=finite)`` chooses among finite rows.
        """
        finite = finite_rows(table)
        if units is None:
            # in one layout, in which norms are added up: another where all are finite would tell all of a null one
            values = np.ascontiguousarray(table if finite.all() else table[finite])
            return cls(values, np.ones(len(values)))
        shares, drawn = np.zeros(len(table)), np.zeros(len(table), dtype=np.bool_)
        shares[units.places], drawn[units.drawn] = units.shares, True
        kept = finite & (shares > 0)
        return cls(np.ascontiguousarray(table[kept]), shares[kept], drawn[kept])

    @property
    def columns(self) -> int:
        return int(self.values.shape[1])

    def chunks(self) -> Iterator[Floats]:
        yield self.values if self.drawn is None else self.values[self.drawn]

    def weighted_chunks(self) -> Iterator[tuple[Floats, Floats]]:
        yield self.values, self.shares

    def map(self, function: Callable[[Floats], Floats], columns: int) -> MemoryRows:
        del columns  # an array knows its own
        return MemoryRows(function(self.values), self.shares, self.drawn)


def finite_rows(table: Floats) -> NDArray[np.bool_]:
    """Which rows have finite values only: the others are null records."""
    return np.asarray(np.isfinite(table).all(axis=1))


def total(rows: Rows, function: Callable[[Floats], Floats]) -> Floats:
    """The sum of ``function`` over the chunks, a unit being one record: exact and sensitive, for the door only."""
    return np.asarray(sum(function(chunk) for chunk in rows.chunks()), dtype=np.float64)


def weighted_total(rows: Rows, function: Callable[[Floats, Floats], Floats]) -> Floats:
    """The sum of ``function(rows, shares)``, which bounds each row before it weighs it: for the door only."""
    return np.asarray(sum(function(*chunk) for chunk in rows.weighted_chunks()), dtype=np.float64)


def products(rows: Floats, weights: Floats) -> Floats:
    """``rows @ weights``, in blocks of one size, the last one filled up with zeros.

    Guarantee:
        The product of a row depends on that row alone, to the last bit: not on its place, and not on how many rows
        there are, by which kernels are chosen. A bit more would change a class where two scores are equal, or the bin
        of a norm at its edge, and from some number of rows on it would do so for all of them at once.

    >>> products(np.ones((3, 2)), np.array([1.0, 2.0])).tolist()
    [3.0, 3.0, 3.0]
    """
    found = np.empty((len(rows), *weights.shape[1:]))
    block = np.zeros((_ROWS, rows.shape[1]))  # of one layout, too
    for start in range(0, len(rows), _ROWS):
        part = rows[start : start + _ROWS]
        block[: len(part)] = part
        block[len(part) :] = 0.0
        found[start : start + _ROWS] = (block @ weights)[: len(part)]
    return found


def whiten(rows: Rows, whitening: Floats) -> Rows:
    """The rows with their features times a matrix, each row on its own; the target stays."""
    return rows.map(lambda values: np.column_stack([products(values[:, :-1], whitening), values[:, -1]]), rows.columns)
