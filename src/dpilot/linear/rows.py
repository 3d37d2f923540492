"""The records of a regression: finite rows of [features | target], read in chunks as often as a method asks.

A method sees its data through sums over chunks only, so a table in memory and a table on disk give the same model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dpilot._arrays import Floats

__all__ = ["MemoryRows", "Rows", "total"]


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
        return cls(table if finite.all() else table[finite])

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
