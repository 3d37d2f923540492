"""Parquet files as rows: read in batches, as often as a method asks, in constant memory."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpilot._arrays import Floats
from dpilot.errors import InvalidInput

__all__ = ["ParquetRows", "parquet_rows"]

BATCH = 1 << 16


@dataclass(frozen=True, slots=True)
class ParquetRows:
    """Rows of [features | target] from ``files``, each read in batches; mapped lazily, batch by batch.

    Guarantee:
        A record with a missing value or one that is not finite is the null record: it never comes out.
        Memory holds one batch, whatever the number of rows: every statistic is a sum over batches.
    """

    files: tuple[Path, ...]
    names: tuple[str, ...]
    width: int
    functions: tuple[Callable[[Floats], Floats], ...] = ()

    @property
    def columns(self) -> int:
        return self.width

    def chunks(self) -> Iterator[Floats]:
        from pyarrow import parquet

        yield self._apply(np.zeros((0, len(self.names))))  # files without rows still have columns
        for path in self.files:
            with parquet.ParquetFile(path, pre_buffer=False) as file:  # buffering would keep the whole file
                for batch in file.iter_batches(BATCH, columns=list(self.names), use_threads=True):
                    yield self._apply(_finite(batch, self.names))

    def map(self, function: Callable[[Floats], Floats], columns: int) -> ParquetRows:
        return ParquetRows(self.files, self.names, columns, (*self.functions, function))

    def _apply(self, values: Floats) -> Floats:
        for function in self.functions:
            values = function(values)
        return values


def parquet_rows(where: Any, target: str) -> tuple[ParquetRows, int, tuple[str, ...]]:
    """The rows of a file, a folder, a pattern or a list of these; their number; the names of the features.

    Edge cases:
        Only the files' own metadata is read here. A missing file or target, a column that is not numeric and files
        of different columns are facts of the files, and raise.
    """
    from pyarrow import parquet, types

    files = _files(where)
    first = parquet.read_schema(files[0])
    if target not in first.names:
        raise InvalidInput(f"target is {target!r}: expected a column of {files[0].name}, one of {first.names}.")
    for path in files:
        schema = parquet.read_schema(path)
        if sorted(schema.names) != sorted(first.names):
            raise InvalidInput(f"{path.name} has other columns than {files[0].name}: expected one table in pieces.")
        wrong = [field.name for field in schema if not _is_number(types, field.type)]
        if wrong:
            raise InvalidInput(
                f"columns {wrong} of {path.name} are not numeric: expected numbers. Encode or drop them."
            )
    features = tuple(name for name in first.names if name != target)
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


def _finite(batch: Any, names: tuple[str, ...]) -> Floats:
    values = np.empty((len(names), batch.num_rows)).T  # columns lie together in memory, as they do in the file
    for place, name in enumerate(names):
        values[:, place] = _column(batch.column(batch.schema.get_field_index(name)))
    finite = np.isfinite(values).all(axis=1)
    return np.ascontiguousarray(values if finite.all() else values[finite])  # in one layout, as in MemoryRows


def _column(column: Any) -> Floats:
    from pyarrow import compute, float64, types

    if types.is_boolean(column.type):
        column = compute.cast(column, "int8")
    column = compute.cast(column, float64(), safe=False)  # a whole number beyond 2^53 is rounded, and never raises
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)
