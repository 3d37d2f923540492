"""From a file or a frame to encoded records in two parts; every record goes its own way by its own coin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpilot.data.encoder import Encoded, Encoder
from dpilot.data.files import Table
from dpilot.data.frames import Frame
from dpilot.data.schema import Schema
from dpilot.data.splits import Split
from dpilot.errors import InvalidInput
from dpilot.keys import KEY_BYTES
from dpilot.noise import seeded_noise
from dpilot.tables.declaration import PARTS
from dpilot.tables.expansion import Expansion, Features

__all__ = ["Prepared", "TableSource", "draw_split", "prepare", "read"]


@dataclass(frozen=True, slots=True)
class TableSource:
    """A table, in a file or in memory, whose columns were checked against the schema; no value has been read.

    ``frames()`` gives the records anew each time it is called, some at a time.
    """

    table: Any
    schema: Schema
    name: str

    @classmethod
    def of(cls, given: Any, schema: Schema) -> TableSource:
        """The table at a path, an opened file (read by its own dialect), a data frame, or a mapping of columns."""
        if isinstance(given, Table):
            dialect = given.dialect
            table = Table.open(given.path, schema, encoding=dialect.encoding, delimiter=dialect.delimiter)
            return cls(table, schema, table.path.stem)
        if isinstance(given, str | Path):
            table = Table.open(given, schema)
            return cls(table, schema, table.path.stem)
        frame = Frame.of(given)
        absent = [column.name for column in schema.used if frame.names[column.name] != 1]
        if absent:
            raise InvalidInput(f"columns {absent[:5]!r} of the schema are not once in the table: expected each once.")
        return cls(given, schema, "a table in memory")

    def length(self) -> int:
        """The number of records, null ones too."""
        return self.table.length() if isinstance(self.table, Table) else Frame.of(self.table).length

    def frames(self) -> Iterator[Any]:
        yield from self.table.frames() if isinstance(self.table, Table) else (self.table,)

    def blanks(self) -> Iterator[NDArray[np.float64]]:
        """A zero for each record, in pieces: what a count of the records counts."""
        yield from (np.zeros(Frame.of(frame).length) for frame in self.frames())


@dataclass(frozen=True, slots=True)
class Prepared:
    """Encoded and widened records of both parts, and what widened them."""

    train: Encoded
    held_out: Encoded
    expansion: Expansion


def draw_split(shares: Mapping[str, float], test_seed: int | None = None, purpose: str = "table split") -> Split:
    """The secret coins of the parts: from the operating system, or those of a test."""
    if test_seed is None:
        return Split.draw(shares)
    return Split(shares, seeded_noise(test_seed).state.generator(purpose).bytes(KEY_BYTES))


def prepare(source: TableSource, encoder: Encoder, split: Split) -> Prepared:
    """All records, encoded, in their parts.

    Guarantee:
        A row is a function of its own record, the schema and its own coin; a record added at the end moves no other.
        Whatever a record holds, nothing is raised: the null record is a row of nan.
    """
    expansion = Expansion(encoder)
    whole = read(source, encoder, expansion.apply)
    places = split.indices(whole.features.shape[0])
    train, held_out = (_take(whole, places[part]) for part in PARTS)
    return Prepared(train, held_out, expansion)


def read(source: TableSource, encoder: Encoder, widen: Callable[[Features], Features]) -> Encoded:
    """All records in one piece, read, encoded and widened a frame at a time."""
    pieces = [encoder.encode(frame) for frame in source.frames()]
    return Encoded(
        np.concatenate([widen(piece.features) for piece in pieces]),
        _concatenate([piece.target for piece in pieces]),
        _concatenate([piece.group for piece in pieces]),
    )


def _concatenate(columns: list[NDArray[np.float64] | None]) -> NDArray[np.float64] | None:
    there = [column for column in columns if column is not None]
    return np.concatenate(there) if there else None


def _take(whole: Encoded, places: NDArray[np.int64]) -> Encoded:
    target = None if whole.target is None else whole.target[places]
    group = None if whole.group is None else whole.group[places]
    return Encoded(whole.features[places], target, group)
