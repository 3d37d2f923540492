"""Data sets one record apart, chosen to be awkward."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["Pair", "neighbours"]

Array = NDArray[Any]

_CONSTANTS: Final[dict[str, float]] = {
    "zeros": 0.0,
    "1e30": 1e30,
    "-1e30": -1e30,
    "the largest float": float(np.finfo(np.float64).max),
    "nan": float("nan"),
    "inf": float("inf"),
    "-inf": float("-inf"),
}


@dataclass(frozen=True, slots=True)
class Pair:
    """Two data sets that differ by one record, the last one."""

    name: str
    data: Any
    neighbour: Any


def neighbours(data: Any, *, unit: int | None = None) -> list[Pair]:
    """The standard neighbours of ``data``, an array or a tuple of arrays that share their first axis.

    One record is added at the end (zeros, extreme, not finite, partly so, a duplicate), the last one is removed, and
    the first record of an empty data set is added. With ``unit``, the number of the array that holds the ids of
    persons, one person with 1, 3 or 20 such rows is added, and the person of the last row is removed.

    Edge cases:
        What a type cannot hold is clipped to its range: an integer label of 1e30 is the largest integer.

    Example:
        >>> [pair.name for pair in neighbours(np.ones((3, 2)))][:3]
        ['a record of zeros added', 'a record of 1e30 added', 'a record of -1e30 added']
    """
    return list(_pairs(data) if unit is None else _person_pairs(data, unit))


def _pairs(data: Any) -> Iterator[Pair]:
    for name, record in _records(data):
        yield Pair(f"a record of {name} added", data, _append(data, record))
    yield Pair("the last record removed", data, _each(data, lambda a: a[:-1]))
    empty = _each(data, lambda a: a[:0])
    for name, record in _records(data):
        yield Pair(f"a record of {name} added to an empty data set", empty, record)


def _person_pairs(data: tuple[Array, ...], unit: int) -> Iterator[Pair]:
    ids = data[unit]
    for name, record in _records(data):
        for rows in (1, 3, 20):
            more = tuple(np.repeat(part, rows, axis=0) for part in record)
            person = np.full(rows, ids.max() + 1 if ids.dtype.kind in "iuf" else "a new person")
            more = (*more[:unit], person, *more[unit + 1 :])
            yield Pair(f"a person with {rows} rows of {name} added", data, _append(data, more))
    kept = ids != ids[-1]
    yield Pair("the person of the last row removed", data, tuple(part[kept] for part in data))


def _records(data: Any) -> Iterator[tuple[str, Any]]:
    last = _each(data, lambda a: a[-1:])
    for name, value in _CONSTANTS.items():
        yield name, _each(last, partial(_constant_record, value=value))
    yield "one nan", _each(last, _one_nan)
    yield "the last one again", last


def _constant_record(like: Array, value: float) -> Array:
    result = np.empty_like(like)
    if like.dtype.kind == "f":
        limit = float(np.finfo(like.dtype).max)
        result[...] = min(max(value, -limit), limit) if math.isfinite(value) else value
    elif like.dtype.kind in "iu":
        limits = np.iinfo(like.dtype)
        result[...] = limits.min if value < 0 else limits.max if value > 0 else 0
    else:
        result[...] = bool(value)
    return result


def _one_nan(like: Array) -> Array:
    result = like.copy()
    if like.dtype.kind == "f":
        result.reshape(1, -1)[0, :1] = np.nan
    return result


def _each(data: Any, change: Callable[[Array], Array]) -> Any:
    return tuple(change(part) for part in data) if isinstance(data, tuple) else change(data)


def _append(data: Any, record: Any) -> Any:
    if isinstance(data, tuple):
        return tuple(np.concatenate(both) for both in zip(data, record, strict=True))
    return np.concatenate([data, record])
