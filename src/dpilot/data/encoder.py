"""From the cells of a table to the numbers a model learns from, by the schema alone.

>>> from dpilot.data.schema import Column, Schema
>>> schema = Schema({"age": Column("age", "numeric", bounds=(0, 100), missing="null"),
...                  "kind": Column("kind", "categorical", categories=("a", "b"))})
>>> encoder = Encoder(schema)
>>> encoder.names
('age', 'kind=a', 'kind=b', 'kind is missing')
>>> encoder.encode({"age": [50, 100, 200], "kind": ["a", None, "b"]}).features.tolist()
[[0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 1.0], [nan, nan, nan, nan]]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpilot._arrays import Floats
from dpilot.data.cells import Cells
from dpilot.data.column import Column
from dpilot.data.frames import Frame
from dpilot.data.reading import ABSENT, WRONG, codes, numbers
from dpilot.data.schema import Schema
from dpilot.errors import InvalidInput

_FORMAT: Final = {"kind": "dpilot encoder", "version": 1}

Features = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Encoded:
    """Encoded records, in their order: the null record is a row of nan with a target and a group of nan.

    ``target`` is the code of a class, or a number scaled to [-1, 1]; ``group`` the code of the protected value; None
    where the schema has none.
    """

    features: Features
    target: Floats | None
    group: Floats | None


@dataclass(frozen=True, slots=True)
class Encoder:
    """Numbers scaled from their bounds to [-1, 1], categories one-hot, and a column that says where a value is missing.

    ::

        numeric      2 (x - lower) / (upper - lower) - 1;    0 where missing
        categorical  1 in the column of its category;        none where missing
        indicator    1 where missing, else 0;                only for columns with missing = "indicator"

    Guarantee:
        Every row is a function of its own record and of the schema. A value that does not parse or lies outside what is
        declared makes the whole record null, silently; no value raises (privacy rule 8). Every entry is in [-1, 1].

    Edge cases:
        A missing target or protected value makes the record null. Values beyond bounds that were bought are clamped, as
        quantiles are no domain; values that are not finite are null there too.
        Columns may come in any order, among others; a column that is missing raises.
    """

    schema: Schema

    def __post_init__(self) -> None:
        if not isinstance(self.schema, Schema):
            raise InvalidInput(f"schema is a {type(self.schema).__name__}: expected a Schema.")
        if self.schema.to_buy:
            raise InvalidInput(
                f"bounds of {list(self.schema.to_buy)[:5]!r} are still to be bought: expected known ones. "
                "Buy them (dpilot.data.bounds) or declare them."
            )
        if not self.schema.features:
            raise InvalidInput('the schema has no features: expected one column or more with role = "feature".')

    @property
    def width(self) -> int:
        """How many encoded columns there are."""
        return sum(map(_width, self.schema.features))

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each encoded column."""
        return tuple(name for column in self.schema.features for name in _names(column))

    def encode(self, frame: Any) -> Encoded:
        """The records of ``frame``: a pandas or polars frame, an arrow table, or a mapping of names to columns."""
        schema = self.schema
        others = [schema.target] if schema.has_target else []
        others += [schema.protected] if schema.protected else []
        table = Frame.of(frame)
        read = {column.name: _single(column, table.cells(column), schema) for column in others}
        features, null = self._features(table)
        for values in read.values():
            null |= ~np.isfinite(values)
        features[null] = np.nan
        for values in read.values():
            values[null] = np.nan
        target = read[schema.target.name] if schema.has_target else None
        return Encoded(features, target, read[schema.protected.name] if schema.protected else None)

    def encode_features(self, frame: Any) -> Features:
        """The features alone, for prediction: no target is asked for."""
        features, null = self._features(Frame.of(frame))
        features[null] = np.nan
        return features

    def decode_target(self, values: Floats) -> NDArray[Any]:
        """Encoded targets as the schema writes them: texts of classes, or numbers within the bounds."""
        column = self.schema.target
        if column.categories is not None:
            return np.asarray(column.categories, dtype=object)[np.asarray(values, dtype=np.int64)]
        lower, upper = column.interval
        return np.asarray(lower + (np.clip(values, -1.0, 1.0) + 1) / 2 * (upper - lower))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, to be saved with a model."""
        return {**_FORMAT, "schema": self.schema.to_dict()}

    @classmethod
    def from_dict(cls, saved: Any) -> Encoder:
        """The encoder that ``to_dict`` saved."""
        if not isinstance(saved, Mapping) or {key: saved.get(key) for key in _FORMAT} != _FORMAT:
            raise InvalidInput("this is no saved encoder of a known version: expected what Encoder.to_dict gave.")
        return cls(Schema.from_dict(saved.get("schema")))

    def _features(self, table: Frame) -> tuple[Features, NDArray[np.bool_]]:
        columns = self.schema.features
        ends = list(accumulate(map(_width, columns)))
        features = np.zeros((table.length, ends[-1]), dtype=np.float32)
        null = np.zeros(table.length, dtype=np.bool_)
        for column, end in zip(columns, ends, strict=True):
            part = features[:, end - _width(column) : end]
            null |= _fill(part, column, table.cells(column), self.schema)
        return features, null


def _width(column: Column) -> int:
    return (len(column.categories) if column.categories is not None else 1) + (column.missing == "indicator")


def _names(column: Column) -> list[str]:
    names = [column.name]
    if column.categories is not None:
        names = [f"{column.name}={category}" for category in column.categories]
    return [*names, f"{column.name} is missing"] if column.missing == "indicator" else names


def _fill(block: Features, column: Column, cells: Cells, schema: Schema) -> NDArray[np.bool_]:
    """Write one column's part of every row; where it makes the record null."""
    if column.categories is not None:
        found = codes(cells, column.categories, schema.missing_values)
        known = np.flatnonzero(found >= 0)
        block[known, found[known]] = 1
        absent, null = found == ABSENT, found == WRONG
    else:
        values = _scale(column, numbers(cells, schema.missing_values))
        absent, null = np.isnan(values), np.isinf(values)
        block[:, 0] = np.where(absent | null, 0.0, values)
    if column.missing == "null":
        return np.asarray(absent | null)
    block[:, -1] = absent
    return np.asarray(null)


def _single(column: Column, cells: Cells, schema: Schema) -> Floats:
    """A target or a group as one float a record; not finite where it is missing or wrong."""
    if column.categories is not None:
        found = codes(cells, column.categories, schema.missing_values)
        return np.where(found >= 0, found.astype(np.float64), np.nan)
    return _scale(column, numbers(cells, schema.missing_values))


def _scale(column: Column, values: Floats) -> Floats:
    """To [-1, 1]; nan stays, and what is outside becomes inf unless it is to be clamped."""
    lower, upper = column.interval
    if column.outside == "clamp":
        values = np.where(np.isinf(values), values, np.clip(values, lower, upper))
    outside = (values < lower) | (values > upper)
    inside = np.where(outside, lower, values)
    return np.where(outside, np.inf, np.clip((inside - lower) / (upper - lower) * 2 - 1, -1.0, 1.0))
