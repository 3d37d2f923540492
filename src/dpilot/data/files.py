"""Tables in files, csv or parquet: checked as files, read as cells, in constant memory.

>>> import tempfile, pathlib
>>> from dpilot.data.schema import Column, Schema
>>> path = pathlib.Path(tempfile.mkdtemp(), "ages.csv")
>>> _ = path.write_text("age\\n17\\nold\\n")
>>> table = Table.open(path, Schema({"age": Column("age", "numeric", bounds=(0, 100))}))
>>> [frame["age"].tolist() for frame in table.frames()]
[['17', 'old']]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dpilot import _validate
from dpilot.data import lines
from dpilot.data.cells import UNREADABLE, Cells, kind, objects, plain_arrow
from dpilot.data.frames import check_kind
from dpilot.data.schema import Schema
from dpilot.errors import InvalidInput

if TYPE_CHECKING:
    import pandas as pd

ROWS: Final = 1 << 16
_CELLS: Final = 1 << 22  # cells and what they become, held at a time: a wide table takes no more than a long one
_MAGIC: Final = b"PAR1"


@dataclass(frozen=True, slots=True)
class Table:
    """A file and its schema, checked against each other by names and types, before any value is read.

    Guarantee:
        Only facts of the file raise: it is not there or not readable, a column of the schema is missing, a column of
        the file is not in the schema. No value of a record raises, and none changes what another record is read as.

    Edge cases:
        A file without records is a table of 0 rows. Columns whose role is "ignored" need not be there and are not read.
        csv: see ``dpilot.data.lines``; a line that is not as many cells as the header is the null record.
    """

    path: Path
    schema: Schema
    names: tuple[str, ...]
    is_parquet: bool
    dialect: lines.Dialect

    @classmethod
    def open(cls, path: str | Path, schema: Schema, *, encoding: str = "utf-8", delimiter: str = ",") -> Table:
        """Check the file; read nothing but its header, or its metadata."""
        dialect = lines.Dialect(encoding, delimiter)
        where, is_parquet = _detect_format(path)
        names = _parquet_names(where) if is_parquet else lines.header(where, dialect)
        resolved = _check_names(names, schema, where.name)
        if is_parquet:
            _check_types(where, resolved)
        table = cls(where, resolved, names, is_parquet, dialect)
        table._check_vectors()
        return table

    def frames(self, rows: int = ROWS) -> Iterator[Any]:
        """The records, at most ``rows`` at a time, as raw cells: texts of a csv file, values of a parquet file.

        Data frames, or where vectors lie in a file of their own, mappings of columns. A table of 0 rows gives one
        empty frame.
        """
        width = len(self.names) + sum((column.width or column.features or 0) for column in self.schema.used)
        rows = min(_validate.count(rows=rows), max(_CELLS // max(width, 1), 1))
        try:
            frames = self._parquet_frames(rows) if self.is_parquet else self._csv_frames(rows)
            yield from self._with_vectors(frames) if self._vector_files else frames
        except OSError as problem:
            reason = problem.strerror or "damaged"
            raise InvalidInput(f"{self.path.name} cannot be read to its end ({reason}).") from None

    def frame(self) -> pd.DataFrame:
        """All records at once."""
        import pandas as pd

        return pd.concat(list(self.frames()), ignore_index=True)

    @property
    def _vector_files(self) -> dict[str, Path]:
        """Where vectors are that lie beside the table."""
        found = {column.name: column.file for column in self.schema.used if column.file}
        return {name: self.path.parent / file.replace("{table}", self.path.stem) for name, file in found.items()}

    def _check_vectors(self) -> None:
        """Refuse an array of another form than the table: facts of the files, before a value is read."""
        for name, path in self._vector_files.items():
            wanted, found = (self.length(), self.schema.columns[name].width), _open_array(path).shape
            if found != wanted:
                raise InvalidInput(
                    f"{path.name} has the shape {found}: expected {wanted}, a row for each record of {self.path.name} "
                    f"and the width that column {name!r} declares."
                )

    def _with_vectors(self, frames: Iterator[pd.DataFrame]) -> Iterator[dict[str, Any]]:
        arrays, start = {name: _open_array(path) for name, path in self._vector_files.items()}, 0
        for frame in frames:
            place = slice(start, start + len(frame))
            start = place.stop
            yield {**dict(frame.items()), **{name: np.array(rows[place]) for name, rows in arrays.items()}}

    @property
    def _own(self) -> list[str]:
        """The columns that are read from the table itself."""
        return [column.name for column in self.schema.needed if not column.file]

    def length(self) -> int:
        """The number of records: lines after the header, blank ones too, or rows."""
        if self.is_parquet:
            from pyarrow import parquet

            return int(parquet.read_metadata(self.path).num_rows)
        return lines.count_lines(self.path)

    def _csv_frames(self, rows: int) -> Iterator[pd.DataFrame]:
        places = {name: place for place, name in enumerate(self.names)}
        wanted = {name: places[name] for name in self._own}
        empty = [UNREADABLE] * len(self.names)
        none = True
        for chunk in lines.records(self.path, self.dialect, len(self.names), rows):
            columns = list(zip(*(empty if cells is None else cells for cells in chunk), strict=True))
            yield _frame({name: objects(columns[place]) for name, place in wanted.items()})
            none = False
        if none:
            yield _frame({name: objects(()) for name in wanted})

    def _parquet_frames(self, rows: int) -> Iterator[pd.DataFrame]:
        from pyarrow import ArrowException, parquet

        names = self._own
        none = True
        try:
            with parquet.ParquetFile(self.path, pre_buffer=False) as file:  # buffering would keep the whole file
                for batch in file.iter_batches(rows, columns=names):
                    yield _frame(
                        {name: plain_arrow(batch.column(batch.schema.get_field_index(name))) for name in names}
                    )
                    none = False
        except ArrowException:
            raise InvalidInput(f"{self.path.name} cannot be read to its end: expected a whole parquet file.") from None
        if none:
            yield _frame({name: objects(()) for name in names})


def column_names(path: str | Path, *, encoding: str = "utf-8", delimiter: str = ",") -> tuple[str, ...]:
    """The names of the columns of a file, from its header or its metadata alone."""
    dialect = lines.Dialect(encoding, delimiter)
    where, is_parquet = _detect_format(path)
    names = _parquet_names(where) if is_parquet else lines.header(where, dialect)
    _check_distinct(names, where.name)
    return names


def _detect_format(path: str | Path) -> tuple[Path, bool]:
    where = Path(path)
    try:
        with where.open("rb") as file:
            start = file.read(len(_MAGIC))
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or "no such name"
        raise InvalidInput(f"the table is {str(path)!r}: expected a readable csv or parquet file ({reason}).") from None
    if not start:
        raise InvalidInput(f"{where.name} is empty: expected a header at least.")
    if start != _MAGIC and where.suffix.lower() in (".parquet", ".pq"):
        raise InvalidInput(f"{where.name} is no parquet file, though its name says so.")
    return where, start == _MAGIC


def _check_names(names: tuple[str, ...], schema: Schema, source: str) -> Schema:
    """The schema for these names: missing columns are told first, as only then the first line is surely a header."""
    resolved = schema.resolve(names, source=source)
    _check_distinct(names, source)
    if resolved.needed != schema.needed:  # the caller would go on with columns that are in no file
        wild = [column.name for column in schema.needed if column.name not in names]
        raise InvalidInput(
            f"{wild[0]!r} of the schema is a wildcard: expected the columns of {source} themselves. "
            "Take schema.resolve(column_names(path)) instead."
        )
    return resolved


def _check_distinct(names: tuple[str, ...], source: str) -> None:
    first: dict[str, int] = {}
    for place, name in enumerate(names, 1):
        if first.setdefault(name, place) != place:
            raise InvalidInput(
                f"columns {first[name]} and {place} of {source} have the same name: expected different ones."
            )


def _parquet_names(path: Path) -> tuple[str, ...]:
    return tuple(_arrow_schema(path).names)


def _check_types(path: Path, schema: Schema) -> None:
    types = _arrow_schema(path)
    for column in (each for each in schema.used if not each.file):
        check_kind(kind(types.field(types.get_field_index(column.name)).type), column)


def _open_array(path: Path) -> Any:
    """The array of an .npy file, on disk; nothing in it is executed."""
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as problem:
        reason = getattr(problem, "strerror", None) or "no whole array of numbers"
        raise InvalidInput(f"vectors are to be in {str(path)!r}: expected a readable .npy file ({reason}).") from None
    if not isinstance(found, np.ndarray) or found.ndim != 2 or found.dtype.kind not in "fiu":
        raise InvalidInput(f"{path.name} holds no rows of numbers: expected an array of two dimensions.")
    return found


def _arrow_schema(path: Path) -> Any:
    from pyarrow import ArrowException, parquet

    try:
        return parquet.read_schema(path)
    except (ArrowException, OSError):
        raise InvalidInput(f"{path.name} is no readable parquet file: expected a whole one.") from None


def _frame(columns: dict[str, Cells]) -> pd.DataFrame:
    import pandas as pd

    length = len(next(iter(columns.values()), ()))
    index = pd.RangeIndex(length)
    kept = {name: pd.Series(cells, index=index, dtype=cells.dtype) for name, cells in columns.items()}
    return pd.DataFrame(kept, index=index)
