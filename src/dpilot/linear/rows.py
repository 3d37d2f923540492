"""The records of a regression: finite rows of [features | target], read in chunks as often as a method asks.

A method sees its data through sums over chunks only, so a table in memory and a table on disk give the same model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from dpilot._arrays import Floats

__all__ = ["MemoryRows", "Rows", "products", "total", "whiten"]

_ROWS: Final = 512  # multiplied at a time


class Rows(Protocol):
    """A table that can be read again and again; a row with a value that is not finite never comes out."""

    @property
    def columns(self) -> int: ...

    def chunks(self) -> Iterator[Floats]: ...

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
    """

    values: Floats

    @classmethod
    def of(cls, table: Floats) -> MemoryRows:
        """The finite rows of ``table``."""
        finite = np.isfinite(table).all(axis=1)
        # in one layout, in which norms are added up: another one where all are finite would tell all rows of a null one
        return cls(np.ascontiguousarray(table if finite.all() else table[finite]))

    @property
    def columns(self) -> int:
        return int(self.values.shape[1])

    def chunks(self) -> Iterator[Floats]:
        yield self.values

    def map(self, function: Callable[[Floats], Floats], columns: int) -> MemoryRows:
        del columns  # an array knows its own
        return MemoryRows(function(self.values))


def total(rows: Rows, function: Callable[[Floats], Floats]) -> Floats:
    """The sum of ``function`` over the chunks: exact and sensitive, for the door only."""
    return np.asarray(sum(function(chunk) for chunk in rows.chunks()), dtype=np.float64)


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
