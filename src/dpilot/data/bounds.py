"""Bounds that were not declared, bought as private quantiles: a coarse search over all magnitudes, then a fine one.

>>> from dpilot.data.schema import Column
>>> from dpilot.privacy.receipt import Receipt
>>> schema = Schema({"age": Column("age", "numeric", bounds="buy")})
>>> paid = Receipt(buy_event(schema, noise_multiplier=2.0))
>>> ages = {"age": np.arange(20_000) % 80 + 10.0}
>>> lower, upper = buy(schema, ages, size=20_000, noise_multiplier=2.0, receipt=paid)["age"]
>>> 5 < lower < 15 and 85 < upper < 95
True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import count
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from dpilot import _validate
from dpilot._arrays import Floats, Indices
from dpilot.data.frames import Frame
from dpilot.data.reading import numbers
from dpilot.data.schema import Schema
from dpilot.errors import InvalidInput
from dpilot.mechanism import SYSTEM, Draws, Noise
from dpilot.privacy.events import Composed, Event, Repeated
from dpilot.statistics import log_grid, quantile, quantile_event

SHARE: Final = 0.1  # of the squared mu of a budget: the default to spend on bounds

Frames = Callable[[], Iterator[Any]]

_COARSE: Final = log_grid(2.0**-20, 2.0**40, per_octave=2, signed=True)
_FINE: Final = np.linspace(0.0, 1.0, 65)[1:]
_TAIL: Final = 0.01  # of the records, beyond each bound
_BLOCK: Final = 1 << 16


def buy_event(schema: Schema, noise_multiplier: float) -> Event:
    """What ``buy`` costs: two searches for every column to buy, together (1 / noise_multiplier)-GDP.

    Edge cases:
        For a share s of the squared mu of a budget, noise_multiplier = 1 / (mu sqrt(s)).
        Refused where there is nothing to buy.
    """
    columns = len(_columns_to_buy(schema))
    each = _each(noise_multiplier, columns)
    return Composed([Repeated(quantile_event(each, grid=grid), columns) for grid in (_COARSE, _FINE)])


def buy(
    schema: Schema,
    frames: Any,
    *,
    size: float,
    noise_multiplier: float,
    receipt: Draws,
    noise: Noise = SYSTEM,
) -> dict[str, tuple[float, float]]:
    """Bounds for the columns with bounds = "buy", ready for ``schema.with_bounds``.

    ``frames`` is one table in memory, or a function that gives a table in pieces, anew each time (``Table.frames``).
    The bounds are the quantiles t and 1 - t of the column, where t is at least 1 %, and as much more as it takes for
    t * ``size`` records to stand above the noise; beyond 1 % the interval is widened as a normal law would have it.

    Guarantee:
        Each column is asked for two quantiles on a constant grid, then again on 64 equal parts of the interval found;
        for d columns every search is (1 / (noise_multiplier sqrt(2 d)))-GDP (``statistics.quantile``), together
        (1 / noise_multiplier)-GDP. Which question comes second follows from the first answer.

    Edge cases:
        A value that is missing, no number or not finite counts in no search of its column, whatever else is in its
        record. Always lower < upper, both finite, whatever the data: no records give a random interval.
        Values beyond 2^40 (about 1e12) either way count as 2^40. The searches know no unit finer than 2^-20.
    """
    names = _columns_to_buy(schema)
    each = _each(noise_multiplier, len(names))
    share = tail(size, noise_multiplier, len(names))
    pieces = frames if callable(frames) else lambda: iter([frames])

    def search(grid: Floats, start: Floats, width: Floats) -> Floats:
        counts = _cell_counts(schema, pieces, grid, start, width)
        quantiles = [
            quantile(
                _values_from_counts(row, grid),
                (share, 1 - share),
                grid=grid,
                noise_multiplier=each,
                receipt=receipt,
                noise=noise,
            )
            for row in counts
        ]
        return np.asarray(quantiles)[:, :, 0].T

    low, high = search(_COARSE, np.zeros(len(names)), np.ones(len(names)))
    start, width = _outer_interval(low, high)
    first, last = search(_FINE, start, width)
    lower, upper = start + width * (first - _FINE[0]), start + width * last
    return dict(zip(names, _widen(lower, upper, share), strict=True))


def tail(size: float, noise_multiplier: float, columns: int) -> float:
    """The share of the records beyond each bound: from declared numbers alone, between 1 % and 25 %."""
    rounds = (_COARSE.size - 1).bit_length()
    deviation = _each(noise_multiplier, columns) * math.sqrt(2 * rounds)
    return min(max(_TAIL, 3 * deviation / _validate.positive(size=size)), 0.25)


def raw_numbers(frame: Any, schema: Schema, names: tuple[str, ...]) -> Floats:
    """The numbers of some columns as they are, (n, len(names)); nan for what is none."""
    table = Frame.of(frame)
    values = np.empty((table.length, len(names)))
    for place, name in enumerate(names):
        read = numbers(table.cells(schema.columns[name]), schema.missing_values)
        values[:, place] = np.where(np.isfinite(read), read, np.nan)
    return values


def _columns_to_buy(schema: Schema) -> tuple[str, ...]:
    if not schema.to_buy:
        raise InvalidInput('no column has bounds = "buy": expected one or more, or no purchase.')
    return schema.to_buy


def _each(noise_multiplier: float, columns: int) -> float:
    return _validate.positive(noise_multiplier=noise_multiplier) * math.sqrt(2 * columns)


def _cell_counts(schema: Schema, pieces: Frames, grid: Floats, start: Floats, width: Floats) -> Indices:
    """How many values of each column lie in each cell of the grid: exact, and sensitive."""
    names = schema.to_buy
    counts = np.zeros((len(names), grid.size + 1), dtype=np.int64)
    for frame in pieces():
        values = np.clip(raw_numbers(frame, schema, names), -1e300, 1e300)  # so that differences stay finite
        for place, column in enumerate(values.T):
            places = np.searchsorted(grid, (column[~np.isnan(column)] - start[place]) / width[place], side="left")
            counts[place] += np.bincount(places, minlength=grid.size + 1)
    return counts


def _values_from_counts(counts: Indices, grid: Floats) -> Iterator[Floats]:
    """Values that lie in the cells as counts, in blocks: all that a search on this grid can see of a column."""
    points = [*grid, 2 * grid[-1]]
    yield np.empty(0)
    for point, number in zip(points, counts.tolist(), strict=True):
        for done in count(0, _BLOCK):
            if done >= number:
                break
            yield np.full(min(number - done, _BLOCK), point)


def _outer_interval(low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """The start and the width of the grid cells from the one that holds ``low`` to the one that ends at ``high``."""
    above = np.maximum(np.searchsorted(_COARSE, high), 1)
    below = np.minimum(np.searchsorted(_COARSE, low), above) - 1
    start = _COARSE[np.maximum(below, 0)]
    return start, _COARSE[above] - start


def _widen(lower: Floats, upper: Floats, share: float) -> list[tuple[float, float]]:
    normal = NormalDist()
    more = normal.inv_cdf(1 - _TAIL) / normal.inv_cdf(1 - share) - 1
    extra = (upper - lower) / 2 * more
    return list(zip((lower - extra).tolist(), (upper + extra).tolist(), strict=True))
