"""Parquet files of numbers: read in batches, or by the places of records, a row group at a time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from dpilot._arrays import Floats, Indices
from dpilot.data.files import parquet_files
from dpilot.data.mapped import MappedDataset
from dpilot.errors import InvalidInput

__all__ = ["ON_DISK", "ParquetDataset", "check_numeric", "numeric_values", "table_files"]


@final
class ParquetDataset:
    """A data set of (features, target) records in parquet files: a file, a folder, a pattern, or a list of these.

    ``features`` names columns of numbers, by default all but the target, which come as float32. The target is int64
    where its column holds whole numbers or booleans, else float32.

    Guarantee:
        A record is read by its place: the row groups in which those asked for lie, one after another, and nothing
        else. Memory holds one row group of the columns, whatever the number of rows.

    Edge cases:
        missing values    of features are nan; a record without a target is one of nan, with a target of 0: a record
                          whose loss is not finite is the null record
        speed             a step that draws from all row groups reads all of them: ``save`` once, and train on the
                          MappedDataset that it gives, which reads the rows alone

    Example:
        ``data = ParquetDataset("visits/*.parquet", target="ill").save("visits")``
    """

    def __init__(self, where: Any, target: str, features: Sequence[str] | None = None) -> None:
        from pyarrow import parquet, types

        self.files = table_files(where)
        schema = parquet.read_schema(self.files[0])
        if target not in schema.names:
            raise InvalidInput(f"target is {target!r}: expected a column of {self.files[0].name}, {schema.names}.")
        self.features = tuple(name for name in schema.names if name != target) if features is None else tuple(features)
        self.target = target
        for path in self.files:
            check_numeric(path, (*self.features, target))
        kind = schema.field(target).type
        self._whole = bool(types.is_integer(kind) or types.is_boolean(kind))
        groups = ((path, parquet.read_metadata(path)) for path in self.files)
        self._groups = [(path, place) for path, facts in groups for place in range(facts.num_row_groups)]
        sizes = [parquet.read_metadata(path).row_group(place).num_rows for path, place in self._groups]
        self._ends = list(accumulate(sizes))
        self._held: tuple[int, tuple[NDArray[Any], NDArray[Any]]] | None = None

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> tuple[NDArray[Any], ...]:
        """One record."""
        return tuple(part[0] for part in self.read(np.array([index])))

    def read(self, places: Indices) -> tuple[NDArray[Any], ...]:
        """The records at ``places``, in that order, as arrays of rows."""
        places = np.asarray(places, dtype=np.int64)
        if places.size and not 0 <= places.min() <= places.max() < len(self):
            raise IndexError(f"a row beyond {len(self)}")
        made = tuple(np.empty((len(places), *part.shape[1:]), part.dtype) for part in self.form)
        which = np.searchsorted(self._ends, places, side="right")
        for group in np.unique(which).tolist():
            found, start = self._read_group(group), self._ends[group - 1] if group else 0
            mine = np.flatnonzero(which == group)
            for part, rows in zip(made, found, strict=True):
                part[mine] = rows[places[mine] - start]
        return made

    @property
    def form(self) -> tuple[NDArray[Any], ...]:
        """One record of zeros: of public types and shapes."""
        return np.zeros((1, len(self.features)), np.float32), np.zeros(1, np.int64 if self._whole else np.float32)

    def save(self, folder: str | Path) -> MappedDataset:
        """Write the records to ``features.npy`` and ``target.npy`` in ``folder``, some at a time, and open them."""
        where = Path(folder)
        where.mkdir(parents=True, exist_ok=True)
        paths = [where / "features.npy", where / "target.npy"]
        shapes = [(len(self), *part.shape[1:]) for part in self.form]
        made = [
            np.lib.format.open_memmap(path, mode="w+", dtype=part.dtype, shape=shape)
            for path, part, shape in zip(paths, self.form, shapes, strict=True)
        ]
        start = 0
        for group in range(len(self._groups)):
            for array, rows in zip(made, self._read_group(group), strict=True):
                array[start : start + len(rows)] = rows
            start = self._ends[group]
        for array in made:
            array.flush()
        return MappedDataset(*paths)

    def _read_group(self, group: int) -> tuple[NDArray[Any], NDArray[Any]]:
        if self._held is None or self._held[0] != group:
            from pyarrow import parquet

            self._held = None  # never two of them
            path, place = self._groups[group]
            with parquet.ParquetFile(path, pre_buffer=False) as file:
                table = file.read_row_group(place, columns=[*self.features, self.target]).combine_chunks()
            (batch,) = table.to_batches() or [None]
            self._held = group, self._arrays(batch)
        return self._held[1]

    @np.errstate(all="ignore")  # whatever a caller has set: no number of a record may raise or warn
    def _arrays(self, batch: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        if batch is None:
            return self.form[0][:0], self.form[1][:0]
        values = numeric_values(batch, (*self.features, self.target))
        rows, target = values[:, :-1].astype(np.float32), values[:, -1]
        rows[~np.isfinite(target)] = np.nan
        return np.ascontiguousarray(rows), np.nan_to_num(target).astype(self.form[1].dtype)


ON_DISK: Final = (MappedDataset, ParquetDataset)
"""Data sets whose records are read many at a time, by their places."""


def table_files(where: Any) -> tuple[Path, ...]:
    """The parquet files of a path, folder, pattern or list of these."""
    places: Sequence[Any] = where if isinstance(where, list | tuple) else [where]
    found: list[Path] = []
    for place in places:
        path = Path(place)
        found += parquet_files(path) or ([path] if path.is_file() else [])
    if not found:
        raise InvalidInput(f"path is {where!r}: expected parquet files there. Check the path or the pattern.")
    return tuple(found)


def check_numeric(path: Path, names: Sequence[str]) -> None:
    """Refuse columns that are not there, or no numbers: facts of the file."""
    from pyarrow import parquet, types

    schema = parquet.read_schema(path)
    absent = [name for name in names if name not in schema.names]
    if absent:
        raise InvalidInput(f"columns {absent} are not in {path.name}: expected one table in pieces, with these.")
    wrong = [name for name in names if not _is_number(types, schema.field(name).type)]
    if wrong:
        raise InvalidInput(f"columns {wrong} of {path.name} are not numeric: expected numbers. Encode or drop them.")


@np.errstate(all="ignore")
def numeric_values(batch: Any, names: Sequence[str]) -> Floats:
    """Some columns of a batch as rows of float64; nan where a value is missing."""
    values = np.empty((len(names), batch.num_rows)).T  # columns lie together in memory, as they do in the file
    for place, name in enumerate(names):
        values[:, place] = _column(batch.column(batch.schema.get_field_index(name)))
    return values


def _is_number(types: Any, kind: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _column(column: Any) -> Floats:
    from pyarrow import compute, float64, types

    if types.is_boolean(column.type):
        column = compute.cast(column, "int8")
    column = compute.cast(column, float64(), safe=False)  # a whole number beyond 2^53 is rounded, and never raises
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)
