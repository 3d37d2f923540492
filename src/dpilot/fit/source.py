"""Where the records of a fit come from, and how they are read: each by itself, by the schema and its own coin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from dpilot._arrays import Floats, Indices
from dpilot.data.bounds import raw_numbers
from dpilot.data.cells import Cells, plain
from dpilot.data.column import Column
from dpilot.data.column_types import CellState, type_of
from dpilot.data.disk import DiskArray
from dpilot.data.encoder import Encoded
from dpilot.data.files import Table, column_names
from dpilot.data.frames import Frame
from dpilot.data.schema import Schema
from dpilot.data.sparse import SparseRows, SparseRowsBuilder, is_usable, null_out
from dpilot.data.states import read_column, record_states
from dpilot.errors import InvalidInput

__all__ = [
    "IN_MEMORY",
    "PlainColumns",
    "RecordSource",
    "RowReader",
    "TableSource",
    "category_codes",
    "take",
]

IN_MEMORY: Final = "a table in memory"
"""The name of a table that has none."""

Seen = Callable[[int], None]


class RowReader(Protocol):
    """Turns the cells of records into rows of numbers; a row with a value that is not finite is the null record."""

    @property
    def schema(self) -> Schema: ...

    def encode_features(self, frame: Any) -> Any:  # an array, or SparseRows
        ...


@dataclass(frozen=True, slots=True)
class PlainColumns:
    """The numbers of the features as they are, for a learner that finds their bounds itself."""

    schema: Schema

    def encode_features(self, frame: Any) -> Floats:
        return raw_numbers(frame, self.schema, tuple(column.name for column in self.schema.features))


class RecordSource(Protocol):
    """Where records come from: some at a time, as often as asked; each is read by itself."""

    @property
    def schema(self) -> Schema: ...

    @property
    def name(self) -> str: ...

    @property
    def flaws(self) -> list[tuple[str, str]]:
        """What can be wrong with a record: (column, what), in the order of ``inspect``."""
        ...

    def length(self) -> int:
        """The number of records, null ones too."""
        ...

    def frames(self) -> Iterator[Any]: ...

    def blanks(self) -> Iterator[Floats]:
        """A zero for each record, in pieces: what a count of the records counts."""
        ...

    def inspect(self) -> Iterator[tuple[NDArray[np.bool_], Floats]]:
        """For some records at a time whether each can be used, and its flaws. Sensitive: for the door only."""
        ...

    def read(self, reader: RowReader, seen: Seen | None = None) -> Encoded:
        """All records in one piece; the null record is a row of nan with a target of nan."""
        ...

    @property
    def is_file(self) -> bool:
        """Whether cells come as a file holds them, whatever others hold."""
        ...

    def ids(self) -> Iterator[Cells]:
        """The ids of each row's unit, some at a time. Sensitive."""
        ...

    def select(self, places: Indices) -> Self:
        """The same with the rows at ``places`` alone, in the table's order."""
        ...


@dataclass(frozen=True, slots=True)
class TableSource:
    """A table, in a file or in memory, whose columns were checked against the schema; no value has been read.

    ``frames()`` gives the records anew each time it is called, some at a time; ``kept`` are the places of the rows
    that are read, ascending, where not all are.
    """

    table: Any
    schema: Schema
    name: str
    kept: Indices | DiskArray | None = field(default=None, repr=False)

    @classmethod
    def of(cls, given: Any, schema: Schema) -> TableSource:
        """The table at a path, an opened file (read by its own dialect), a data frame, or a mapping of columns."""
        if isinstance(given, Table):
            dialect = given.dialect
            path, how = given.path, {"encoding": dialect.encoding, "delimiter": dialect.delimiter}
        elif isinstance(given, str | Path):
            path, how = Path(given), {}
        else:
            return cls(given, Frame.of(given).resolve(schema), IN_MEMORY)
        resolved = schema.resolve(column_names(path, **how), source=path.name)
        return cls(Table.open(path, resolved, **how), resolved, path.stem if path.exists() else path.parent.name)

    def length(self) -> int:
        """The number of records, null ones too."""
        if self.kept is not None:
            return len(self.kept)
        return self.table.length() if isinstance(self.table, Table) else Frame.of(self.table).length

    def frames(self) -> Iterator[Any]:
        whole = self.table.frames() if isinstance(self.table, Table) else (self.table,)
        if self.kept is None:
            yield from whole
            return
        start = read = 0
        for frame in whole:
            table = Frame.of(frame)
            ahead = self.kept[read : read + table.length]  # no more of them can lie in this frame
            places = ahead[ahead < start + table.length] - start
            start, read = start + table.length, read + len(places)
            yield {name: plain(table.table[name])[places] for each in self.schema.needed for name in each.sources}

    @property
    def is_file(self) -> bool:
        """Whether cells come as a file holds them, whatever others hold."""
        return isinstance(self.table, Table)

    def ids(self) -> Iterator[Cells]:
        """The ids of each row's unit, some at a time, in the table's order. Sensitive."""
        assert self.schema.unit is not None
        yield from (Frame.of(frame).cells(self.schema.unit) for frame in self.frames())

    def select(self, places: Indices | DiskArray) -> TableSource:
        """The same with the rows at ``places`` alone, in the table's order; those on disk are."""
        return replace(self, kept=places if isinstance(places, DiskArray) else np.sort(places))

    def pieces(self, reader: RowReader) -> Iterator[Encoded]:
        """The records some at a time, one piece at least; each is read by itself."""
        return (_read_frame(frame, self.schema, reader) for frame in self.frames())

    def blanks(self) -> Iterator[Floats]:
        """A zero for each record, in pieces: what a count of the records counts."""
        yield from (np.zeros(Frame.of(frame).length) for frame in self.frames())

    @property
    def flaws(self) -> list[tuple[str, str]]:
        return [(column.name, _name(column, state)) for column in self.schema.used for state in _flaws(column)]

    def inspect(self) -> Iterator[tuple[NDArray[np.bool_], Floats]]:
        """For each record of a frame whether it can be used, and its flaws. Sensitive: for the door only."""
        for frame in self.frames():
            found = record_states(self.schema, frame)
            flaws = [found.columns[column.name] == state for column in self.schema.used for state in _flaws(column)]
            yield found.usable, np.column_stack(flaws).astype(np.float64)

    def read(self, reader: RowReader, seen: Seen | None = None) -> Encoded:
        """All records in one piece, read a frame at a time; the null record is a row of nan with a target of nan.

        ``seen`` is called with how many have been read so far, which is as sensitive as their number.

        Guarantee:
            A row is a function of its own record and of the schema; a record added at the end moves no other.
            Whatever a record holds, nothing is raised.

        Edge cases:
            protected columns   one column of group codes for each
            a numeric target    is in its own unit; outside declared bounds it makes the record null, or is pulled in
                                where the schema says "clamp"
        """
        pieces = self.pieces(reader)
        if not isinstance(self.table, Table):
            return next(pieces)
        found, start, sparse = None, 0, SparseRowsBuilder()
        for piece in pieces:  # a piece at a time into one array: never two copies of a large table
            found = _room(piece, self.length()) if found is None else found
            stop = start + len(piece.features)
            if isinstance(piece.features, SparseRows):
                sparse.append(piece.features)
            for all_, some in zip(_arrays(found), _arrays(piece), strict=True):
                if stop > len(all_):
                    raise InvalidInput(f"{self.name} grew while it was read: expected a table that nobody writes to.")
                all_[start:stop] = some
            start = stop
            if seen is not None:
                seen(start)
        assert found is not None  # a table of 0 rows gives one empty frame
        read = take(found, slice(start))
        return replace(read, features=sparse.build()) if isinstance(found.features, SparseRows) else read


def take(records: Encoded, places: NDArray[np.int64] | slice) -> Encoded:
    """The records at ``places``; those of a slice are not copied."""
    target = None if records.target is None else records.target[places]
    return Encoded(records.features[places], target, None if records.group is None else records.group[places])


def _room(like: Encoded, length: int) -> Encoded:
    """Arrays for ``length`` records of the kinds of some."""
    features, target, group = (
        None if some is None else np.empty((length, *some.shape[1:]), some.dtype)
        for some in (None if isinstance(like.features, SparseRows) else like.features, like.target, like.group)
    )
    return Encoded(like.features if features is None else features, target, group)


def _arrays(records: Encoded) -> list[NDArray[Any]]:
    """What is filled in place."""
    features = None if isinstance(records.features, SparseRows) else records.features
    found: list[Any] = [each for each in (features, records.target, records.group) if each is not None]
    return found


def category_codes(frame: Any, column: Column, schema: Schema) -> Floats:
    """The place of each cell among the declared categories; nan for a cell that is missing or none of them."""
    return np.asarray(read_column(column, Frame.of(frame), schema).values, dtype=np.float64)


def _read_frame(frame: Any, schema: Schema, reader: RowReader) -> Encoded:
    features = reader.encode_features(frame)
    target = _read_target(frame, schema)
    coded = [category_codes(frame, column, schema) for column in schema.protected_columns]
    null = ~is_usable(features) | ~np.isfinite([target, *coded]).all(axis=0)
    null_out(features, null)
    for values in (target, *coded):
        values[null] = np.nan
    return Encoded(features, target, np.column_stack(coded) if coded else None)


def _read_target(frame: Any, schema: Schema) -> Floats:
    """The code of each record's class, or its number; nan where it is missing or wrong."""
    column = schema.target
    if column.categories is not None:
        return category_codes(frame, column, schema)
    values = raw_numbers(frame, schema, (column.name,))[:, 0]
    if not isinstance(column.bounds, tuple):
        return values
    lower, upper = column.bounds
    if column.outside == "clamp":
        return np.clip(values, lower, upper)
    return np.where((values >= lower) & (values <= upper), values, np.nan)


def _flaws(column: Column) -> tuple[CellState, ...]:
    """What can be wrong with a cell of ``column``."""
    return type_of(column).flaws(column)


def _name(column: Column, state: CellState) -> str:
    unknown = "unknown class" if column.role == "target" else "unknown category"
    outside = "of another mode" if column.type == "image" else "outside bounds"
    names = {CellState.MISSING: "missing", CellState.OUTSIDE: outside, CellState.UNKNOWN: unknown}
    return names.get(state, "unreadable")
