"""Parquet files as rows: read in batches, as often as a method asks, in constant memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpilot._arrays import Floats
from dpilot.data.cells import kind, plain_arrow
from dpilot.data.disk import DiskArray
from dpilot.data.parquet import check_numeric, numeric_values, table_files
from dpilot.data.units import UnitTable, UnitTableBuilder, cut_units
from dpilot.errors import InvalidInput
from dpilot.linear.rows import MappedRows, UnitChunk, finite_rows, rechunk
from dpilot.privacy.unit import PrivacyUnit

__all__ = ["DiskRows", "ParquetRows", "UnitTableRows", "group_parquet", "parquet_rows"]

BATCH = 1 << 16


@dataclass(frozen=True, slots=True)
class ParquetRows:
    """Rows of [features | target] from ``files``, each read in batches.

    Guarantee:
        A record with a missing value or one that is not finite is the null record: it never comes out.
        Memory holds one batch, whatever the number of rows: every statistic is a sum over batches.
    """

    files: tuple[Path, ...]
    names: tuple[str, ...]

    @property
    def columns(self) -> int:
        return len(self.names)

    def chunks(self) -> Iterator[Floats]:
        yield np.zeros((0, len(self.names)))  # files without rows still have columns
        for batch in self.batches():
            values = numeric_values(batch, self.names)
            finite = finite_rows(values)
            values = np.ascontiguousarray(values if finite.all() else values[finite])  # in one layout, as in MemoryRows
            del batch  # which would be held beside the next one
            yield values

    def unit_chunks(self) -> Iterator[UnitChunk]:
        return map(UnitChunk, self.chunks())

    def batches(self, more: Sequence[str] = ()) -> Iterator[Any]:
        """The rows as arrow has them, with ``more`` columns."""
        from pyarrow import parquet

        for path in self.files:
            with parquet.ParquetFile(path, pre_buffer=False) as file:  # buffering would keep the whole file
                yield from file.iter_batches(BATCH, columns=[*self.names, *more], use_threads=True)

    def map(self, function: Callable[[Floats], Floats], columns: int) -> MappedRows:
        return MappedRows(self, function, columns)


@dataclass(frozen=True, slots=True)
class UnitTableRows:
    """Rows of a table that was grouped by unit on disk, part after part."""

    table: UnitTable

    @property
    def columns(self) -> int:
        return self.table.columns

    def chunks(self) -> Iterator[Floats]:
        for part in range(self.table.parts):
            yield UnitChunk(*self.table.read(part)).drawn

    def unit_chunks(self) -> Iterator[UnitChunk]:
        for part in range(self.table.parts):
            yield UnitChunk(*self.table.read(part))

    def map(self, function: Callable[[Floats], Floats], columns: int) -> MappedRows:
        return MappedRows(self, function, columns)


@dataclass(frozen=True, slots=True, eq=False)
class DiskRows:
    """Rows of features and targets that lie on disk, in the chunks of ``MemoryRows``; ``units`` ascend, if there are.

    Guarantee:
        That of ``ParquetRows``; sums over chunks are those of the same rows in memory, bit for bit.
    """

    features: DiskArray
    target: DiskArray
    units: Any = None

    @property
    def columns(self) -> int:
        return self.features.shape[1] + 1

    def chunks(self) -> Iterator[Floats]:
        return (chunk.drawn for chunk in self.unit_chunks())

    def unit_chunks(self) -> Iterator[UnitChunk]:
        return rechunk(self._read())

    def _read(self) -> Iterator[UnitChunk]:
        length = max(len(self.target), 1)
        blocks = (slice(start, min(start + BATCH, length)) for start in range(0, length, BATCH))
        for place in blocks if self.units is None or not len(self.units) else cut_units(self.units, BATCH):
            values = np.empty((len(self.target[place]), self.columns))
            values[:, :-1], values[:, -1] = self.features[place], self.target[place]
            finite = finite_rows(values)
            starts = None if self.units is None else np.flatnonzero(np.diff(self.units[place][finite], prepend=-1))
            yield UnitChunk(np.ascontiguousarray(values[finite]), starts)

    def map(self, function: Callable[[Floats], Floats], columns: int) -> MappedRows:
        return MappedRows(self, function, columns)


def group_parquet(rows: ParquetRows, length: int, unit: PrivacyUnit, key: bytes) -> tuple[UnitTableRows, int]:
    """The rows grouped by the ids in the unit's column, in one pass, and the number of units.

    Guarantee:
        What is grouped lies in files without names (``data.disk``) as long as the rows are held: numbers of all rows,
        8 bytes each, and digests of ids. TMPDIR says on which disk.
    """
    builder = UnitTableBuilder(unit, key, length, rows.columns)
    for batch in rows.batches([unit.name]):
        ids = plain_arrow(batch.column(batch.schema.get_field_index(unit.name)))
        builder.add(ids, numeric_values(batch, rows.names))
    table = builder.build()
    return UnitTableRows(table), table.count


def parquet_rows(where: Any, target: str, unit: str | None = None) -> tuple[ParquetRows, int, tuple[str, ...]]:
    """The rows of a file, a folder, a pattern or a list of these; their number; the names of the features.

    ``unit`` is a column of ids, of any type, and no feature.

    Edge cases:
        Only the files' own metadata is read here. A missing file or target, a column that is not numeric and files
        of different columns are facts of the files, and raise.
    """
    from pyarrow import parquet

    files = table_files(where)
    first = parquet.read_schema(files[0])
    for what, name in (("target", target), *([] if unit is None else [("unit", unit)])):
        if name not in first.names:
            raise InvalidInput(f"{what} is {name!r}: expected a column of {files[0].name}, one of {first.names}.")
    if unit == target:
        raise InvalidInput(f"unit and target are both {unit!r}: expected a column of ids, and another of targets.")
    for path in files:
        schema = parquet.read_schema(path)
        if sorted(schema.names) != sorted(first.names):
            raise InvalidInput(f"{path.name} has other columns than {files[0].name}: expected one table in pieces.")
        if unit is not None and kind(schema.field(unit).type) == "nested":
            raise InvalidInput(f"column {unit!r} of {path.name} holds lists or records: expected one id for each row.")
        check_numeric(path, [name for name in schema.names if name != unit])
    features = tuple(name for name in first.names if name not in (target, unit))
    length = sum(parquet.read_metadata(path).num_rows for path in files)
    return ParquetRows(files, (*features, target)), length, features
