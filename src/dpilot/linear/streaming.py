"""Parquet files as rows: read in batches, as often as a method asks, in constant memory."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpilot._arrays import Floats
from dpilot.data.cells import kind, plain_arrow
from dpilot.data.units import UnitRowsFile, UnitRowsFileBuilder
from dpilot.errors import InvalidInput
from dpilot.linear.rows import finite_rows
from dpilot.privacy.unit import PrivacyUnit

__all__ = ["ParquetRows", "group_parquet", "parquet_rows"]

BATCH = 1 << 16


@dataclass(frozen=True, slots=True)
class ParquetRows:
    """Rows of [features | target] from ``files``, each read in batches; mapped lazily, batch by batch.

    Guarantee:
        A record with a missing value or one that is not finite is the null record: it never comes out.
        Memory holds one batch, whatever the number of rows: every statistic is a sum over batches.
        With ``units``, a row comes out as often as that file says: see ``linear.rows``.
    """

    files: tuple[Path, ...]
    names: tuple[str, ...]
    width: int
    functions: tuple[Callable[[Floats], Floats], ...] = ()
    units: UnitRowsFile | None = None

    @property
    def columns(self) -> int:
        return self.width

    def chunks(self) -> Iterator[Floats]:
        for values, _, drawn in self._finite_rows():
            yield self._apply(values if self.units is None else values[drawn])

    def weighted_chunks(self) -> Iterator[tuple[Floats, Floats]]:
        for values, shares, _ in self._finite_rows():
            counts = shares > 0
            yield self._apply(values if self.units is None else values[counts]), shares[counts]

    def map(self, function: Callable[[Floats], Floats], columns: int) -> ParquetRows:
        return replace(self, width=columns, functions=(*self.functions, function))

    def batches(self, more: Sequence[str] = ()) -> Iterator[Any]:
        """The rows as arrow has them, with ``more`` columns."""
        from pyarrow import parquet

        for path in self.files:
            with parquet.ParquetFile(path, pre_buffer=False) as file:  # buffering would keep the whole file
                yield from file.iter_batches(BATCH, columns=[*self.names, *more], use_threads=True)

    def _finite_rows(self) -> Iterator[tuple[Floats, Floats, NDArray[np.bool_]]]:
        """Finite rows, the share of each in its unit, and whether it is the one that is drawn."""
        start = 0
        yield np.zeros((0, len(self.names))), np.zeros(0), np.zeros(0, np.bool_)  # files without rows have columns
        for batch in self.batches():
            values, length = _values(batch, self.names), batch.num_rows
            finite = finite_rows(values)
            shares, drawn = np.ones(length), np.ones(length, np.bool_)
            if self.units is not None:
                shares, drawn = self.units.read(start, start + length)
            start += length
            del batch  # which would be held beside the next one
            values = np.ascontiguousarray(values if finite.all() else values[finite])  # in one layout, as in MemoryRows
            yield values, shares[finite], drawn[finite]

    def _apply(self, values: Floats) -> Floats:
        for function in self.functions:
            values = function(values)
        return values


@contextmanager
def group_parquet(rows: ParquetRows, length: int, unit: PrivacyUnit, key: bytes) -> Iterator[tuple[ParquetRows, int]]:
    """The rows grouped by the ids in the unit's column, in one pass, and the number of units.

    Guarantee:
        Digests of ids and numbers of rows lie in a temporary folder of the user's own (mode 0700) until the body ends.
        A row that is not finite is left out before rows are chosen, as in memory.
    """
    with TemporaryDirectory(prefix="dpilot-units-") as folder:
        builder = UnitRowsFileBuilder(unit, key, Path(folder), length)
        for batch in rows.batches([unit.name]):
            ids = plain_arrow(batch.column(batch.schema.get_field_index(unit.name)))
            builder.add(ids, finite_rows(_values(batch, rows.names)))
        units = builder.build()
        yield replace(rows, units=units), units.count


def parquet_rows(where: Any, target: str, unit: str | None = None) -> tuple[ParquetRows, int, tuple[str, ...]]:
    """The rows of a file, a folder, a pattern or a list of these; their number; the names of the features.

    ``unit`` is a column of ids, of any type, and no feature.

    Edge cases:
        Only the files' own metadata is read here. A missing file or target, a column that is not numeric and files
        of different columns are facts of the files, and raise.
    """
    from pyarrow import parquet, types

    files = _files(where)
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
        wrong = [field.name for field in schema if field.name != unit and not _is_number(types, field.type)]
        if wrong:
            raise InvalidInput(
                f"columns {wrong} of {path.name} are not numeric: expected numbers. Encode or drop them."
            )
    features = tuple(name for name in first.names if name not in (target, unit))
    length = sum(parquet.read_metadata(path).num_rows for path in files)
    return ParquetRows(files, (*features, target), len(features) + 1), length, features


def _files(where: Any) -> tuple[Path, ...]:
    places: Sequence[Any] = where if isinstance(where, list | tuple) else [where]
    found: list[Path] = []
    for place in places:
        path = Path(place)
        found += sorted(path.glob("*.parquet")) if path.is_dir() else map(Path, sorted(glob.glob(str(path))))
    if not found:
        raise InvalidInput(f"path is {where!r}: expected parquet files there. Check the path or the pattern.")
    return tuple(found)


def _is_number(types: Any, kind: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _values(batch: Any, names: tuple[str, ...]) -> Floats:
    values = np.empty((len(names), batch.num_rows)).T  # columns lie together in memory, as they do in the file
    for place, name in enumerate(names):
        values[:, place] = _column(batch.column(batch.schema.get_field_index(name)))
    return values


def _column(column: Any) -> Floats:
    from pyarrow import compute, float64, types

    if types.is_boolean(column.type):
        column = compute.cast(column, "int8")
    column = compute.cast(column, float64(), safe=False)  # a whole number beyond 2^53 is rounded, and never raises
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)
