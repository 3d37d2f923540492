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
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import hstack, vstack

from dpilot._arrays import Floats
from dpilot.data.column import Column
from dpilot.data.column_types import CellState, Embedding, Reading, type_of
from dpilot.data.disk import DiskArray
from dpilot.data.frames import Frame
from dpilot.data.hashing import hash_texts
from dpilot.data.schema import Schema
from dpilot.data.sparse import SparseRows, null_out
from dpilot.data.states import null_cells, read_column, read_pieces
from dpilot.errors import InvalidInput

_SPARSE_FROM: Final = 512  # hashed columns; fewer take no less as entries
_FORMAT: Final = {"kind": "dpilot encoder", "version": 1}

Features = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Encoded:
    """Encoded records, in their order: the null record is a row of nan with a target and a group of nan.

    ``target`` is the code of a class, or a number scaled to [-1, 1]; ``group`` the code of the protected value, and an
    array (records, columns) where several columns are protected; None where the schema has none.
    """

    features: Features | SparseRows | DiskArray
    target: Floats | DiskArray | None
    group: Floats | None


@dataclass(frozen=True, slots=True)
class Encoder:
    """What each type makes of its cells (``data/types``), and a column that says where a value is missing or unknown.

    ::

        numeric      2 (x - lower) / (upper - lower) - 1;    0 where missing
        categorical  1 in the column of its category;        none where missing
        dates        their place, and cycles;                0 where missing
        text         a row of unit length; a vector too;     zeros where missing
        image        the same, by ``embeddings``, else of its pixels
        indicator    1 where missing, or unknown, else 0;    only for columns that say "indicator"

    Guarantee:
        Every row is a function of its own record and of the schema. A value that does not parse or lies outside what is
        declared makes the whole record null, silently; no value raises (privacy rule 8). Every entry is in [-1, 1].

    Edge cases:
        A missing target or protected value makes the record null. Values beyond bounds that were bought are clamped, as
        quantiles are no domain; values that are not finite are null there too.
        Columns may come in any order, among others; a column that is missing raises.
    """

    schema: Schema
    embeddings: Mapping[str, Embedding] = field(default_factory=dict, repr=False, compare=False)

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
        return sum(map(self._width, self.schema.features))

    @property
    def lowest(self) -> tuple[float, ...]:
        """The least that each encoded column can be, 0 or -1; the most is 1."""
        each = ((self._lowest(column), _indicators(column)) for column in self.schema.features)
        return tuple(value for own, more in each for value in (*own, *[0.0] * len(more)))

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each encoded column."""
        return tuple(name for column in self.schema.features for name in self._names(column))

    @property
    def places(self) -> dict[str, slice]:
        """Where each feature is among the encoded columns, its indicators included."""
        widths = list(map(self._width, self.schema.features))
        ends = accumulate(widths)
        columns = zip(self.schema.features, ends, widths, strict=True)
        return {column.name: slice(end - width, end) for column, end, width in columns}

    def encode(self, frame: Any) -> Encoded:
        """The records of ``frame``: a pandas or polars frame, an arrow table, or a mapping of names to columns."""
        schema, table = self.schema, Frame.of(frame)
        found, null = self._features(table)
        features = np.asarray(found)
        groups = schema.protected_columns
        others = [*groups, schema.target] if schema.has_target else list(groups)
        read = {column.name: read_column(column, table, schema) for column in others}
        for column in others:
            null |= null_cells(column, read[column.name].states)
        features[null] = np.nan
        values = {name: np.where(null, np.nan, reading.values) for name, reading in read.items()}
        target = values[schema.target.name] if schema.has_target else None
        coded = [values[column.name] for column in groups]
        group = None if not coded else coded[0] if len(coded) == 1 else np.column_stack(coded)
        return Encoded(features, target, group)

    def encode_features(self, frame: Any) -> Features | SparseRows:
        """The features alone, for prediction: no target is asked for. Those of wide hashed texts are sparse."""
        features, null = self._features(Frame.of(frame))
        null_out(features, null)
        return features

    def to_dict(self) -> dict[str, Any]:
        """Plain data, to be saved with a model."""
        return {**_FORMAT, "schema": self.schema.to_dict()}

    @classmethod
    def from_dict(cls, saved: Any) -> Encoder:
        """The encoder that ``to_dict`` saved."""
        if not isinstance(saved, Mapping) or {key: saved.get(key) for key in _FORMAT} != _FORMAT:
            raise InvalidInput("this is no saved encoder of a known version: expected what Encoder.to_dict gave.")
        return cls(Schema.from_dict(saved.get("schema")))

    def _features(self, table: Frame) -> tuple[Features | SparseRows, NDArray[np.bool_]]:
        null = np.zeros(table.length, dtype=np.bool_)
        dense, hashed = np.zeros((table.length, self._dense_width), dtype=np.float32), list[Any]()
        start = 0
        for column in self.schema.features:
            sparse, pieces = _is_sparse(column), list[Any]()
            width = 0 if sparse else len(self._own_names(column))
            part = dense[:, start : start + width + len(_indicators(column))]
            for piece, reading in read_pieces(column, table, self.schema):
                if sparse:
                    pieces.append(hash_texts(reading.values.tolist(), column.features or 0, column.length or 0))
                else:
                    self._fill(part[piece, :width], reading, column)
                for place, state in enumerate(_indicators(column), width):
                    part[piece, place] = reading.states == state
                null[piece] |= null_cells(column, reading.states)
            hashed += [vstack(pieces, format="csr")] if sparse else []
            start += part.shape[1]
        return self._sparse_rows(hashed, dense) if hashed else dense, null

    @property
    def _dense_width(self) -> int:
        return self.width - sum(column.features or 0 for column in self.schema.features if _is_sparse(column))

    def _sparse_rows(self, hashed: list[Any], dense: Features) -> SparseRows:
        """The rows of hashed texts and of all other columns, each column at its place."""
        columns, places = [column for column in self.schema.features if _is_sparse(column)], self.places
        where = np.concatenate([np.arange(column.features or 0) + places[column.name].start for column in columns])
        found = hstack(hashed, format="csr")
        others = np.setdiff1d(np.arange(self.width), where)
        return SparseRows.of(where[found.indices], found.data, np.diff(found.indptr), dense, others, self.width)

    def _fill(self, block: Features, reading: Reading, column: Column) -> None:
        """Write what the cells of one column become, but for what says what a cell is not."""
        embed = self.embeddings.get(column.name)
        if embed is None:
            type_of(column).fill(block, reading.values, column)
        else:
            block[:] = embed(reading.values)
            block[reading.states == CellState.MISSING] = 0.0

    def _width(self, column: Column) -> int:
        return len(self._names(column))

    def _names(self, column: Column) -> list[str]:
        told = {CellState.MISSING: "missing", CellState.UNKNOWN: "unknown"}
        return [*self._own_names(column), *(f"{column.name} is {told[state]}" for state in _indicators(column))]

    def _own_names(self, column: Column) -> list[str]:
        embed = self.embeddings.get(column.name)
        if embed is None:
            return type_of(column).names(column)
        return [f"{column.name}#{place}" for place in range(embed.width)]

    def _lowest(self, column: Column) -> list[float]:
        embed = self.embeddings.get(column.name)
        return type_of(column).lowest(column) if embed is None else [-1.0] * embed.width


def _is_sparse(column: Column) -> bool:
    """Whether it becomes many columns of which a record fills few: by declaration alone."""
    return column.type == "text" and column.encoder is None and (column.features or 0) >= _SPARSE_FROM


def _indicators(column: Column) -> list[CellState]:
    """States that have an encoded column of their own, in its order."""
    found = [CellState.MISSING] if column.missing == "indicator" else []
    return [*found, CellState.UNKNOWN] if column.outside == "indicator" else found
