"""Tables in files, csv or parquet, and folders of pictures: checked as files, read as cells, in constant memory.

>>> import tempfile, pathlib
>>> from dpilot.data.schema import Column, Schema
>>> path = pathlib.Path(tempfile.mkdtemp(), "ages.csv")
>>> _ = path.write_text("age\\n17\\nold\\n")
>>> table = Table.open(path, Schema({"age": Column("age", "numeric", bounds=(0, 100))}))
>>> [frame["age"].tolist() for frame in table.frames()]
[['17', 'old']]
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dpilot import _validate
from dpilot.data import folders, lines
from dpilot.data.cells import UNREADABLE, Cells, kind, objects, plain_arrow
from dpilot.data.column_types import piece_rows
from dpilot.data.frames import check_kind
from dpilot.data.pictures import PictureFile
from dpilot.data.schema import Schema
from dpilot.errors import InvalidInput

if TYPE_CHECKING:
    import pandas as pd

ROWS: Final = 1 << 16
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
        Parquet files in a folder, or that a pattern such as "visits/*.parquet" names, are one table in pieces, in the
        order of their names. Any other folder is a table of its pictures and their classes: see
        ``dpilot.data.folders``. Names in a column of
        pictures are those of files below the table's own folder, or below the ``folder`` that the schema names there.
    """

    path: Path
    schema: Schema
    names: tuple[str, ...]
    form: str  # "csv", "parquet" or "folder"
    dialect: lines.Dialect
    files: tuple[Path, ...]  # of a table in pieces, in the order of their names

    @classmethod
    def open(cls, path: str | Path, schema: Schema, *, encoding: str = "utf-8", delimiter: str = ",") -> Table:
        """Check the file; read nothing but its header, or its metadata."""
        dialect = lines.Dialect(encoding, delimiter)
        where, form, files = _detect_format(path)
        names = _names(files, form, dialect)
        if form == "folder" and not any(column.type == "image" for column in schema.used):
            raise InvalidInput(
                f"the table is {str(path)!r}, a folder: expected a readable csv or parquet file, or a schema that "
                "declares pictures. dpilot schema init writes one."
            )
        resolved = _check_names(names, schema, where.name)
        if form == "parquet":
            _check_types(files, resolved)
        table = cls(where, resolved, names, form, dialect, files)
        table._check_vectors()
        table._check_folders()
        return table

    def frames(self, rows: int = ROWS) -> Iterator[Any]:
        """The records, at most ``rows`` at a time, as raw cells: texts of a csv file, values of a parquet file.

        Data frames, or where vectors lie in a file of their own, mappings of columns. A table of 0 rows gives one
        empty frame.
        """
        rows = min(_validate.count(rows=rows), piece_rows(self.schema.used, len(self.names)))
        read = {"csv": self._csv_columns, "parquet": self._parquet_columns, "folder": self._folder_columns}[self.form]
        roots = self._roots
        none = True
        try:
            for columns in self._with_vectors(read(rows)) if self._vector_files else read(rows):
                yield columns if self._vector_files else _frame(columns, roots)
                none = False
            if none:
                yield _frame({name: objects(()) for each in self.schema.needed for name in each.sources}, roots)
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
            wanted, (rows, width) = self.schema.columns[name].width, _open_array(path).shape
            if (rows, width) != (self.length(), wanted):  # how many there are is protected
                raise InvalidInput(
                    f"{path.name} has rows of {width} numbers, or not as many rows as {self.path.name} has records: "
                    f"expected one for each, of the {wanted} numbers that column {name!r} declares."
                )

    @property
    def _roots(self) -> dict[str, str]:
        """Where the files are that columns of pictures name."""
        home = self.path if self.path.is_dir() else self.path.parent
        return {each.name: str(home / (each.folder or "")) for each in self.schema.used if each.type == "image"}

    def _check_folders(self) -> None:
        """Refuse a folder of pictures that is not there: a fact of the container, which would make all records null."""
        for name, root in self._roots.items():
            if not Path(root).is_dir():
                raise InvalidInput(
                    f"column {name!r}: folder is {self.schema.columns[name].folder!r}, and there is no such folder "
                    f"beside {self.path.name}: expected where the files are, from the folder of the table on."
                )

    def _with_vectors(self, read: Iterator[dict[str, Cells]]) -> Iterator[dict[str, Any]]:
        arrays, start = {name: _open_array(path) for name, path in self._vector_files.items()}, 0
        for columns in read:
            place = slice(start, start + len(next(iter(columns.values()), ())))
            start = place.stop
            yield {**columns, **{name: np.array(rows[place]) for name, rows in arrays.items()}}

    @property
    def _own(self) -> list[str]:
        """The columns that are read from the table itself."""
        return [name for column in self.schema.needed if not column.file for name in column.sources]

    def length(self) -> int:
        """The number of records: lines after the header, blank ones too, or rows."""
        if self.form == "folder":
            return folders.count_entries(self.path)
        if self.form == "parquet":
            from pyarrow import parquet

            return sum(int(parquet.read_metadata(file).num_rows) for file in self.files)
        return lines.count_lines(self.path)

    def _csv_columns(self, rows: int) -> Iterator[dict[str, Cells]]:
        places = {name: place for place, name in enumerate(self.names)}
        wanted = {name: places[name] for name in self._own}
        empty = [UNREADABLE] * len(self.names)
        for chunk in lines.records(self.path, self.dialect, len(self.names), rows):
            columns = list(zip(*(empty if cells is None else cells for cells in chunk), strict=True))
            yield {name: objects(columns[place]) for name, place in wanted.items()}

    def _parquet_columns(self, rows: int) -> Iterator[dict[str, Cells]]:
        from pyarrow import ArrowException, parquet

        names = self._own
        for path in self.files:
            try:
                with parquet.ParquetFile(path, pre_buffer=False) as file:  # buffering would keep the whole file
                    for batch in file.iter_batches(rows, columns=names):
                        yield {name: plain_arrow(batch.column(batch.schema.get_field_index(name))) for name in names}
            except ArrowException:
                raise InvalidInput(f"{path.name} cannot be read to its end: expected a whole parquet file.") from None

    def _folder_columns(self, rows: int) -> Iterator[dict[str, Cells]]:
        entries = folders.list_entries(self.path)
        while chunk := list(islice(entries, rows)):
            columns = dict(zip(folders.NAMES, zip(*chunk, strict=True), strict=True))
            yield {column.name: objects(columns[column.name]) for column in self.schema.needed}


def column_names(path: str | Path, *, encoding: str = "utf-8", delimiter: str = ",") -> tuple[str, ...]:
    """The names of the columns of a file, from its header or its metadata alone."""
    dialect = lines.Dialect(encoding, delimiter)
    where, form, files = _detect_format(path)
    names = _names(files, form, dialect)
    _check_distinct(names, where.name)
    return names


def is_picture_folder(path: str | Path) -> bool:
    """Whether it is a folder, and not one of parquet files."""
    return Path(path).is_dir() and not parquet_files(path)


def parquet_files(path: str | Path) -> tuple[Path, ...]:
    """The parquet files in a folder, or that a pattern names, in the order of their names; none of a single file."""
    where = Path(path)
    if where.is_dir():
        return tuple(sorted(where.glob("*.parquet")))
    if where.exists() or glob.escape(str(path)) == str(path):
        return ()
    return tuple(map(Path, sorted(glob.glob(str(path)))))


def _names(files: tuple[Path, ...], form: str, dialect: lines.Dialect) -> tuple[str, ...]:
    if form == "folder":
        return folders.NAMES
    return tuple(_arrow_schema(files[0]).names) if form == "parquet" else lines.header(files[0], dialect)


def _detect_format(path: str | Path) -> tuple[Path, str, tuple[Path, ...]]:
    """The path, what is there, and the files that hold the table."""
    where, pieces = Path(path), parquet_files(path)
    if where.is_dir() and not pieces:
        return where, "folder", (where,)
    if pieces:
        for piece in pieces:
            if _file_format(piece) != "parquet":
                raise InvalidInput(f"{piece.name} is no parquet file: expected a table in pieces of parquet.")
        return where, "parquet", pieces
    return where, _file_format(where), (where,)


def _file_format(path: str | Path) -> str:
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
    return "parquet" if start == _MAGIC else "csv"


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


def _check_types(files: tuple[Path, ...], schema: Schema) -> None:
    """Refuse columns of the wrong type, and pieces that have other columns than the first: facts of the files."""
    names = sorted(_arrow_schema(files[0]).names)
    for path in files:
        types = _arrow_schema(path)
        if sorted(types.names) != names:
            raise InvalidInput(f"{path.name} has other columns than {files[0].name}: expected one table in pieces.")
        for column in (each for each in schema.used if not each.file):
            for name in column.sources:
                check_kind(kind(types.field(types.get_field_index(name)).type), column)


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


def _frame(columns: dict[str, Cells], roots: Mapping[str, str]) -> pd.DataFrame:
    """Columns as a frame; names of pictures become files below their root."""
    import pandas as pd

    for name, root in roots.items():
        columns[name] = objects(PictureFile(root, cell) if type(cell) is str else cell for cell in columns[name])
    length = len(next(iter(columns.values()), ()))
    index = pd.RangeIndex(length)
    kept = {name: pd.Series(cells, index=index, dtype=cells.dtype) for name, cells in columns.items()}
    return pd.DataFrame(kept, index=index)
