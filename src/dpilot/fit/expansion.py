"""Rows as a model sees them, from the declaration alone: numbers in more shapes, and no type outweighed by the others.

A number that is scaled linearly from wide bounds, such as a capital gain of 5,000 in [0, 99,999], moves its feature by
so little that private steps never find it. Each numeric column is therefore given ten features: the scaled number, its
place on a symmetric log scale, and eight overlapping tents along that scale. Where a noisy marginal of the column was
paid for (``fit.grids.levels``), its quantile there stands in for the log scale.

A text, a vector or a picture is a row of unit length, as long as one category. Among m other columns it is made sqrt(m)
times as long, so that it weighs as much as all of them together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from dpilot._arrays import Floats
from dpilot.data.column import Column
from dpilot.data.column_types import type_of
from dpilot.data.encoder import Encoder
from dpilot.data.schema import Schema
from dpilot.data.sparse import SparseRows
from dpilot.fit.embeddings import encoder_of

if TYPE_CHECKING:
    from dpilot.fit.grids.levels import Levels

__all__ = ["MOST_NUMBERS", "TENTS", "RowMap", "WideRows", "features_of", "on_log_scale", "rows_of"]

MOST_NUMBERS: Final = 64
"""That are widened: more would make many thousand columns."""
TENTS: Final = 8
_CONSTANT: Final = 0.3  # beside texts and vectors of unit length

Features = NDArray[np.float32]


def on_log_scale(values: Floats, lower: float, upper: float, octaves: int = 10) -> Floats:
    """Place in [-1, 1] of values in [lower, upper] on a log scale around 0, or around the end nearest to it.

    ::

        f(x) = sign(x - c) log2(1 + |x - c| / s),   s = (upper - lower) / 2^10,   scaled so that the bounds are -1 and 1

    Example:
        >>> on_log_scale(np.array([0.0, 5_000.0, 100_000.0]), 0.0, 100_000.0).round(2).tolist()
        [-1.0, 0.14, 1.0]
    """
    centre, unit = min(max(0.0, lower), upper), (upper - lower) / 2**octaves

    def position(x: Any) -> Any:
        return np.sign(x - centre) * np.log2(1 + np.abs(x - centre) / unit)

    low, high = position(lower), position(upper)
    return np.asarray(np.clip((position(values) - low) / (high - low) * 2 - 1, -1.0, 1.0))


@dataclass(frozen=True, slots=True)
class WideRows:
    """Encoded features as a model sees them: with the log place and the tents of every numeric column appended.

    Guarantee:
        Row by row, and from declared or bought bounds alone. A null row (nan) stays null; every entry is finite
        otherwise, and in [-1, 1] where there are no texts and vectors. A missing number adds nothing.

    Edge cases:
        more than 64 numbers    would make many thousand columns: the features as they are, and a constant
        no number, no category  a constant, as nothing else is the same in all rows

    Example:
        >>> from dpilot.data.schema import Schema
        >>> age = {"type": "numeric", "bounds": [0, 100], "missing": "null"}
        >>> wide = features_of(Schema.from_dict({"columns": {"age": age}}))
        >>> wide.width, wide.widen(np.array([[-1.0]], dtype=np.float32)).round(1).tolist()
        (10, [[-1.0, -1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    """

    encoder: Encoder
    levels: Levels | None = None

    @property
    def expands(self) -> bool:
        """Whether numbers get more shapes."""
        return len(self.numbers()) <= MOST_NUMBERS

    @property
    def shapes(self) -> str:
        """What becomes of the columns, in words."""
        along = "" if self.levels is None else " between its noisy quantiles"
        numbers = f"each number widened to ten features{along}" if self.expands else "numbers as they are"
        kinds = {
            "text": "texts as hashed words and parts of them",
            "encoder": "texts as a sentence encoder reads them",
            "vector": "vectors over their lengths",
            "image": "features of pictures",
        }
        types = {"encoder" if column.encoder else column.type for column in self.encoder.schema.features}
        told = [numbers] if "numeric" in types or not types & set(kinds) else []
        return ", ".join([*told, *(said for kind, said in kinds.items() if kind in types)])

    @property
    def width(self) -> int:
        more = (1 + TENTS) * len(self.numbers()) if self.expands else 0
        return self.encoder.width + more + self.has_constant

    @property
    def mean_square(self) -> float:
        """About the squared length of a row, by declaration: 1 a category, 1/3 a spread number, 1/2 its tents."""
        others = len(self.encoder.schema.features) - len(self.unit_blocks())
        numbers = len(self.numbers())
        plain = (others - numbers) + numbers * (2 / 3 + 2 / 3 if self.expands else 1 / 3)
        return 1.0 + plain + len(self.unit_blocks()) * self.unit_length**2

    def widen(self, features: Features | SparseRows) -> Features | SparseRows:
        """The rows as a model sees them; those that are sparse stay so."""
        if isinstance(features, SparseRows):
            return self._widen_sparse(features)
        wide, start = np.empty((len(features), self.width), dtype=np.float32), features.shape[1]
        wide[:, :start] = features
        for block in self.unit_blocks():
            wide[:, block] *= self.unit_length
        for place, column in self.numbers() if self.expands else ():
            wide[:, start : start + 1 + TENTS] = _shapes(features, place, column, self.levels)
            start += 1 + TENTS
        wide[:, start:] = self.constant  # where there is one
        return wide

    def _widen_sparse(self, rows: SparseRows) -> SparseRows:
        """The same of rows whose hashed texts are entries: all that is scaled or made is in the other columns."""
        assert self.levels is None  # marginals are not bought beside hashed texts
        at = {place: own for own, place in enumerate(rows.places.tolist())}
        made = (
            [_shapes(rows.others, at[place], column, None) for place, column in self.numbers()] if self.expands else []
        )
        constant = np.full((len(rows), int(self.has_constant)), self.constant)
        others = np.concatenate([rows.others, *made, constant], axis=1, dtype=np.float32)
        units = [place for block in self.unit_blocks() for place in range(block.start, block.stop)]
        others[:, [at[place] for place in units if place in at]] *= self.unit_length
        places = np.concatenate([rows.places, np.arange(rows.width, self.width)])
        scales = np.full(len(rows), self.unit_length, dtype=np.float32)
        return rows.scale(scales, others, places, self.width)

    def numbers(self) -> list[tuple[int, Column]]:
        """Each numeric column, and where its scaled number is among the encoded features."""
        places = self.encoder.places
        return [
            (places[column.name].start, column) for column in self.encoder.schema.features if column.type == "numeric"
        ]

    def unit_blocks(self) -> list[slice]:
        """Where texts and vectors are among the encoded features."""
        places = self.encoder.places
        return [places[column.name] for column in self.encoder.schema.features if type_of(column).is_unit]

    @property
    def unit_length(self) -> float:
        """How long texts and vectors are made: as long as the other columns together."""
        return math.sqrt(max(len(self.encoder.schema.features) - len(self.unit_blocks()), 1))

    @property
    def has_constant(self) -> bool:
        """Tents of a number add up to 1, and so do the columns of categories; nothing else does."""
        columns = self.encoder.schema.features
        return not self.expands or all(type_of(column).is_unit or column.range is not None for column in columns)

    @property
    def constant(self) -> float:
        return 1.0 if not self.expands else _CONSTANT


class RowMap(Protocol):
    """What a model sees of rows that were read."""

    @property
    def shapes(self) -> str: ...

    def widen(self, features: Any) -> Any: ...


def rows_of(reader: Any) -> RowMap:
    """How the rows of a reader are widened: those of a table by their schema; another reader says itself."""
    return WideRows(reader) if isinstance(reader, Encoder) else reader


def features_of(schema: Schema) -> WideRows:
    """How the features of a schema whose bounds are known are widened."""
    return WideRows(encoder_of(schema))


def _shapes(features: Features, place: int, column: Column, levels: Levels | None) -> Floats:
    lower, upper = column.interval
    scaled = features[:, place].astype(np.float64)
    if levels is None:
        position = on_log_scale(lower + (scaled + 1) / 2 * (upper - lower), lower, upper)
    else:
        position = np.where(np.isnan(scaled), np.nan, 2 * levels.quantiles(place, scaled) - 1)
    knots = np.linspace(-1.0, 1.0, TENTS)
    tents = np.clip(1 - np.abs(position[:, None] - knots) / (knots[1] - knots[0]), 0.0, 1.0)
    made = np.column_stack([position, tents])
    if column.missing == "indicator":
        made[features[:, place + 1] == 1] = 0.0
    return made
