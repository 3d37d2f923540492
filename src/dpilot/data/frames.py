"""Tables in memory, of any library, as named columns of plain cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpilot.data.cells import Cells, kind, objects, plain
from dpilot.data.column import Column
from dpilot.data.schema import Schema
from dpilot.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Frame:
    """A pandas or polars frame, an arrow table, or a mapping of names to columns of one length.

    Edge cases:
        A column that is missing, that is there twice, or whose type as a whole cannot hold what the schema declares (a
        column of lists, where no vectors are declared; of dates, where numbers are) is a fact of the table, and raises.
        pandas and numpy choose types by the values, where one record can decide: there such cells are null, each by
        itself. A column of vectors may be an array of two dimensions.
    """

    table: Any
    length: int
    names: Counter[Any]

    @classmethod
    def of(cls, table: Any) -> Frame:
        """What is known of ``table`` before a cell is read."""
        if isinstance(table, Mapping):
            columns = {name: _column(values) for name, values in table.items()}
            lengths = set(map(len, columns.values()))
            if len(lengths) > 1:
                raise InvalidInput("the columns have different lengths: expected one value of each for every record.")
            return cls(columns, lengths.pop() if lengths else 0, Counter(list(columns)))
        names = getattr(table, "column_names", None) or getattr(table, "columns", None)
        if names is None or not hasattr(table, "__getitem__"):
            raise InvalidInput(
                f"the table is a {type(table).__name__}: expected a data frame, or a mapping of columns."
            )
        return cls(table, len(table), Counter(names))

    def resolve(self, schema: Schema, *, beside: Iterable[str] = ()) -> Schema:
        """The schema for this table, checked by names and types: what is not declared is told before a cell is read.

        ``beside`` names columns that are handed over apart, as the target. Whatever ``cells`` would refuse of the
        table is refused here, with the lines that declare what nobody declared (``Schema.resolve``).
        """
        others = [name for name in self.names if not isinstance(name, str)]
        if others and schema.defaults.others == "refused":
            raise InvalidInput(
                f"the column {others[0]!r} of the table is not named by a text: expected one. Rename it."
            )
        apart = tuple(beside)
        resolved = schema.resolve([*(name for name in self.names if isinstance(name, str)), *apart])
        for column in resolved.needed:
            if column.name not in apart:
                for name in column.sources:
                    self._single(name, column)
        return resolved

    def cells(self, column: Column) -> Cells:
        """The plain cells of one declared column; those of a vector of columns as an array of two dimensions."""
        if column.columns is None:
            return plain(self._single(column.name, column))
        return np.column_stack([plain(self._single(name, column)) for name in column.sources])

    def _single(self, name: str, column: Column) -> Any:
        """A column as the table holds it: once, and of a type that can hold what is declared."""
        if self.names[name] != 1:
            found = "more than once" if self.names[name] else "not"
            raise InvalidInput(f"column {name!r} of the schema is {found} in the table: expected it once.")
        values = self.table[name]
        check_kind(kind(values), column)
        if getattr(values, "ndim", 1) != 1 and (column.type != "vector" or column.columns is not None):
            raise InvalidInput(
                f"column {name!r} is an array of {values.ndim} dimensions: expected one value for every record."
            )
        return values


def check_kind(found: str, column: Column) -> None:
    """Refuse a column whose type as a whole cannot hold what is declared."""
    if column.type == "vector" and column.columns is None and found == "nested":
        return
    if found == "nested" or (found == "time" and column.type in ("numeric", "vector")):
        holds = "lists or records" if found == "nested" else "dates or times"
        raise InvalidInput(
            f"column {column.name!r} holds {holds}: expected {column.type} values. Convert or ignore it."
        )


def is_frame(table: Any) -> bool:
    """Whether it is a frame of pandas or polars, or an arrow table: named columns, each of a type of its own."""
    library = type(table).__module__.partition(".")[0]
    return library in ("pandas", "polars", "pyarrow") and hasattr(table, "columns")


def columns_of(table: Any) -> list[tuple[Any, Any]]:
    """The names and columns of a frame, in order; a name may be there twice."""
    names = getattr(table, "column_names", None) or list(table.columns)
    if hasattr(table, "iloc"):
        return [(name, table.iloc[:, place]) for place, name in enumerate(names)]
    return list(zip(names, table.columns if hasattr(table, "column_names") else table.get_columns(), strict=True))


def _column(values: Any) -> Any:
    if not (hasattr(values, "dtype") or hasattr(values, "type")):
        return objects(values)
    if getattr(values, "ndim", 1) not in (1, 2):
        raise InvalidInput(f"a column is an array of {values.ndim} dimensions: expected one value for every record.")
    return values
