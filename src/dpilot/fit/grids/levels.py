"""Columns as levels: a category is its code, a number its quantile in a noisy marginal, cut into 64 equal parts.

A number that is scaled linearly from wide bounds hardly moves its feature. Its quantile does, but the exact one is not
to be had: it is taken from a histogram of the column with noise. Cells are fixed by the declared bounds, half of them
even and half on a log scale; what a cell takes of the range is the square root of its count, so that an atom (a capital
gain of 0) takes no more of it than it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpilot._arrays import Floats
from dpilot.data.column import Column
from dpilot.data.column_types import type_of
from dpilot.data.encoder import Encoder
from dpilot.fit.expansion import on_log_scale

__all__ = ["LEVELS", "Levels", "Marginal", "TableColumn", "cell_edges", "columns_of", "dense_columns", "project_counts"]

LEVELS: Final = 64  # of a number
_CELLS: Final = 128  # even ones of a marginal, and as many on a log scale
_EVEN: Final = 0.03  # of the range goes to all cells alike, so that none has no width

Codes = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column by its places among the encoded ones: ``hot``, one for each level, or that of a ``number`` in [-1, 1].

    ``missing`` is the place of the indicator of a number that may be missing, ``interval`` its declared bounds.

    Edge cases:
        a category none of whose places is 1, and a number that is missing, have a level of their own: the last
    """

    name: str
    hot: tuple[int, ...] = ()
    number: int | None = None
    missing: int | None = None
    interval: tuple[float, float] | None = None

    @property
    def levels(self) -> int:
        """How many there are, that of what is missing included."""
        return 1 + (len(self.hot) if self.number is None else LEVELS)


def columns_of(encoder: Encoder) -> tuple[TableColumn, ...]:
    """The columns of a table that have levels: all but texts and vectors."""
    return tuple(
        found
        for column in encoder.schema.features
        if not type_of(column).is_unit
        for found in _columns(column, encoder.places[column.name], encoder.names)
    )


def dense_columns(encoder: Encoder) -> tuple[slice, ...]:
    """Where texts and vectors are among the encoded columns: rows of length 1 at most."""
    return tuple(encoder.places[each.name] for each in encoder.schema.features if type_of(each).is_unit)


def _columns(column: Column, places: slice, names: Sequence[str]) -> list[TableColumn]:
    own = len(type_of(column).names(column))
    after = places.start + own  # where indicators begin: that of missing values is the first
    missing = after if column.missing == "indicator" else None
    if column.type == "numeric":
        return [TableColumn(column.name, number=places.start, missing=missing, interval=column.interval)]
    if column.range is not None:  # a date: its place in the range, and cycles
        return [TableColumn(names[place], number=place, missing=missing) for place in range(places.start, after)]
    hot = [*range(places.start, after - bool(column.ordered)), *range(after, places.stop)]
    return [TableColumn(column.name, hot=tuple(hot))]


def cell_edges(column: TableColumn) -> Floats:
    """Edges of the cells of a number's marginal, in encoded units: from the declared bounds alone.

    Example:
        >>> edges = cell_edges(TableColumn("gain", number=0, interval=(0.0, 100_000.0)))
        >>> edges[[0, 1, 2, -2, -1]].round(5).tolist(), len(edges) <= 256
        ([-1.0, -0.99989, -0.99978, 0.98438, 1.0], True)
    """
    even = np.linspace(-1.0, 1.0, _CELLS + 1)
    if column.interval is None:
        return even
    lower, upper = column.interval
    # where the log scale passes its even places: it is monotone, so inverted by interpolation on a fine grid
    fine = np.concatenate([np.linspace(-1.0, 1.0, 1 << 12), _toward(lower, upper)])
    fine = np.unique(np.clip(fine, -1.0, 1.0))
    scaled = on_log_scale(lower + (fine + 1) / 2 * (upper - lower), lower, upper)
    log = np.interp(even[1:-1], scaled, fine)
    made = np.unique(np.concatenate([even, log]))
    return np.asarray(made[np.append(True, np.diff(made) > 1e-6)])  # closer than float32 tells apart


def _toward(lower: float, upper: float) -> Floats:
    """Encoded values that come close to the centre of the log scale from both sides."""
    centre = (min(max(0.0, lower), upper) - lower) / (upper - lower) * 2 - 1
    steps = 2.0 ** np.linspace(-14.0, 1.0, 1 << 11)
    return np.concatenate([centre - steps, [centre], centre + steps])


def project_counts(counts: Floats, total: float) -> Floats:
    """The nearest counts that are not negative and add up to ``total``: noise in empty cells is cut off.

    >>> project_counts(np.array([5.0, -2.0, 1.0]), 4.0).tolist()
    [4.0, 0.0, 0.0]
    """
    falling = np.sort(counts)[::-1]
    excess = (np.cumsum(falling) - total) / np.arange(1, len(falling) + 1)
    return np.asarray(np.maximum(counts - excess[np.flatnonzero(falling > excess)[-1]], 0.0))


@dataclass(frozen=True, slots=True, eq=False)
class Marginal:
    """The released shares of a number's cells, which add up to 1, and that of records in which it is missing."""

    shares: Floats
    missing: float

    @classmethod
    def of(cls, noisy: Floats, size: float) -> Marginal:
        """From noisy counts of the cells, the last of which counts what is missing."""
        counts = project_counts(noisy, max(size, 1.0))
        known = max(float(counts[:-1].sum()), 1e-9)
        return cls(counts[:-1] / known, float(counts[-1]) / max(size, 1.0))

    @property
    def quantiles(self) -> Floats:
        """That of each edge, in [0, 1], tempered: the square roots of the shares, added up."""
        roots = np.sqrt(self.shares)
        widths = (1 - _EVEN) * roots / max(float(roots.sum()), 1e-9) + _EVEN / len(roots)
        ends = np.append(0.0, np.cumsum(widths))
        return np.asarray(ends / ends[-1])


@dataclass(frozen=True)
class Levels:
    """Reads encoded rows as levels, by released marginals, one for each number in turn."""

    columns: tuple[TableColumn, ...]
    marginals: tuple[Marginal, ...]

    @cached_property
    def numbers(self) -> dict[int, tuple[Floats, Floats]]:
        """Edges and their quantiles, by the place of the number among the encoded columns."""
        numbers = [column for column in self.columns if column.number is not None]
        return {
            column.number or 0: (cell_edges(column), marginal.quantiles)
            for column, marginal in zip(numbers, self.marginals, strict=True)
        }

    @property
    def flat(self) -> Floats:
        """All marginals as one array, to be saved."""
        return np.concatenate([np.zeros(0), *(np.append(each.shares, each.missing) for each in self.marginals)])

    @classmethod
    def of_flat(cls, columns: tuple[TableColumn, ...], flat: Floats) -> Levels:
        """What ``flat`` was saved of."""
        lengths = [len(cell_edges(column)) for column in columns if column.number is not None]
        pieces = np.split(flat, np.cumsum(lengths)[:-1]) if lengths else []
        return cls(columns, tuple(Marginal(each[:-1], float(each[-1])) for each in pieces))

    def quantiles(self, number: int, values: NDArray[Any]) -> Floats:
        """Those of encoded values of the number at that place, in [0, 1]; of one that is not finite 0."""
        return np.asarray(np.interp(np.nan_to_num(values), *self.numbers[number]))

    def codes(self, features: NDArray[Any]) -> Codes:
        """The level of each column (columns, rows); of a null row anything."""
        most = max((column.levels for column in self.columns), default=1)
        made = np.zeros((len(self.columns), len(features)), np.min_scalar_type(most))
        for place, column in enumerate(self.columns):
            made[place] = self._code(column, features)
        return made

    def _code(self, column: TableColumn, features: NDArray[Any]) -> NDArray[np.int64]:
        if column.number is None:
            block = features[:, list(column.hot)]
            best = block.argmax(axis=1)
            return np.where(block[np.arange(len(block)), best] > 0, best, len(column.hot))
        values = self.quantiles(column.number, features[:, column.number])
        found = np.minimum((values * LEVELS).astype(np.int64), LEVELS - 1)
        if column.missing is None:
            return found
        return np.where(features[:, column.missing] == 1, LEVELS, found)

    def shares(self, place: int) -> Floats:
        """About how many of the records are in each level of a column: released for numbers, even for categories."""
        column = self.columns[place]
        if column.number is None:
            return np.append(np.full(len(column.hot), 1 / max(len(column.hot), 1)), 0.0)
        marginal = self.marginals[list(self.numbers).index(column.number)]
        _, ends = self.numbers[column.number]
        inner = np.interp(np.linspace(0, 1, LEVELS + 1), ends, np.append(0.0, np.cumsum(marginal.shares)))
        return np.append(np.diff(inner) * (1 - marginal.missing), marginal.missing)
