"""What is wrong with a schema, told before a budget is spent: by itself, by a header, a codebook or a public sample."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from dpilot.data import toml, values
from dpilot.data.cells import UNREADABLE
from dpilot.data.codebook import Codebook, CodebookEntry
from dpilot.data.column import Column
from dpilot.data.column_types import CellState
from dpilot.data.files import Table
from dpilot.data.frames import Frame
from dpilot.data.invented import invent_rows
from dpilot.data.schema import Schema
from dpilot.data.states import null_cells, record_states
from dpilot.data.wildcards import expand, find
from dpilot.errors import InvalidInput

__all__ = [
    "ColumnShares",
    "SampleShares",
    "SchemaFinding",
    "check_codebook",
    "check_sample",
    "check_schema",
    "measure_sample",
]

_SHOWN: Final = 3  # examples of cells that make records null
_DISTINCT: Final = 10_000  # different cells that are counted, so that memory stays bounded
_NEVER: Final = 0.5  # of the cells of a column: beyond this share of wrong or missing ones, the column is told


@dataclass(frozen=True, slots=True)
class SchemaFinding:
    """Something to know of a column, or of the whole schema. A problem makes records null or a column useless."""

    column: str | None
    text: str
    is_problem: bool

    def __str__(self) -> str:
        return self.text if self.column is None else f"{self.column}: {self.text}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {"column": self.column, "text": self.text, "problem": self.is_problem}


@dataclass(frozen=True, slots=True)
class ColumnShares:
    """Exact shares of the cells of one column of a public table, and the most common of those that are wrong."""

    name: str
    fine: float
    missing: float
    outside: float
    unknown: float
    unreadable: float
    null: float
    wrong: tuple[tuple[str, int], ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {**asdict(self), "wrong": [list(pair) for pair in self.wrong]}


@dataclass(frozen=True, slots=True)
class SampleShares:
    """Exact shares of a public table: of its null records, and by column."""

    records: int
    null: float
    columns: tuple[ColumnShares, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "records": self.records,
            "null": self.null,
            "columns": [column.to_dict() for column in self.columns],
        }


def check_schema(schema: Schema) -> Iterator[SchemaFinding]:
    """What the schema tells against itself."""
    if not schema.features:
        yield SchemaFinding(None, 'no column is a feature: give one or more role = "feature".', is_problem=True)
    if not schema.has_target:
        yield SchemaFinding(None, 'no column has role = "target": name it in the call.', is_problem=False)
    for row in invent_rows(schema):
        if row.unexpected:
            yield SchemaFinding(
                row.column,
                f"{row.what} {row.cell!r} is read as {row.state}. Take it out of missing_values, or of the column.",
                is_problem=True,
            )
    for column in schema.used:
        yield from _check_column(column, schema)


def check_header(schema: Schema, names: Iterable[str], source: str) -> Iterator[SchemaFinding]:
    """What the names of a table's columns tell against the schema."""
    try:
        schema.resolve(names, source=source)
    except InvalidInput as problem:
        yield SchemaFinding(None, str(problem), is_problem=True)


def measure_sample(table: Table) -> SampleShares:
    """What becomes of the records of a file that is declared public: its values are read, exactly."""
    schema = table.schema
    counts = {column.name: np.zeros(len(CellState), dtype=np.int64) for column in schema.used}
    nulls = dict.fromkeys(counts, 0)
    wrong: dict[str, Counter[str]] = {name: Counter() for name in counts}
    usable = records = 0
    for frame in table.frames():
        found = record_states(schema, frame)
        records, usable = records + len(found.usable), usable + int(found.usable.sum())
        for column in schema.used:
            counts[column.name] += found.count(column.name)
            null = null_cells(column, found.columns[column.name])
            nulls[column.name] += int(null.sum())
            bad = np.flatnonzero(null & (found.columns[column.name] != CellState.MISSING))
            _count_cells(wrong[column.name], Frame.of(frame).cells(column)[bad].tolist())
    total = max(records, 1)
    columns = tuple(
        ColumnShares(
            name,
            **{state.name.lower(): float(each[state] / total) for state in CellState},
            null=nulls[name] / total,
            wrong=tuple(wrong[name].most_common(_SHOWN)),
        )
        for name, each in counts.items()
    )
    return SampleShares(records, 1 - usable / total if records else 0.0, columns)


def check_sample(schema: Schema, shares: SampleShares, *, allowed: float = 0.0) -> Iterator[SchemaFinding]:
    """What a public sample tells against the schema; a share of null records up to ``allowed`` is no problem."""
    if shares.null > 0:
        yield SchemaFinding(None, f"{shares.null:.1%} of the records would be null.", is_problem=shares.null > allowed)
    for column in shares.columns:
        declared = schema.columns[column.name]
        if column.null > 0:
            text = f"{column.null:.1%} of the cells make their record null{_examples(column, declared)}"
            yield SchemaFinding(column.name, text, is_problem=column.null > allowed)
        kept = column.outside if declared.outside == "clamp" else 0.0
        if kept > _NEVER:
            text = f"{kept:.1%} of the numbers are beyond the bounds and put on the nearest one. Widen them."
            yield SchemaFinding(column.name, text, is_problem=True)
        if column.missing == 1:
            yield SchemaFinding(column.name, "no cell has a value: ignore it.", is_problem=True)
        elif column.missing > _NEVER:
            yield SchemaFinding(column.name, f"{column.missing:.1%} of the cells are missing.", is_problem=False)


def check_codebook(schema: Schema, codebook: Codebook) -> Iterator[SchemaFinding]:
    """Where schema and codebook disagree: a problem where values of the codebook would make records null."""
    for name, entry in codebook.entries.items():
        column = find(schema.columns, name)
        if column is None:
            if schema.defaults.others == "refused":
                line = toml.line(name, entry.to_dict())
                text = f"the codebook describes it, the schema does not. Write at the top of the schema: {line}"
                yield SchemaFinding(name, text, is_problem=False)
        elif column.used:
            yield from (SchemaFinding(name, text, bad) for text, bad in _disagreements(column, entry, schema))
    described = expand(schema.columns, codebook.entries)
    for column in schema.used:
        if column.name not in codebook.entries and column.name in described:
            yield SchemaFinding(column.name, "the codebook does not describe it.", is_problem=False)


def _check_column(column: Column, schema: Schema) -> Iterator[SchemaFinding]:
    listed = column.categories
    if listed is not None and len(listed) == 1:
        what = "there are no groups to compare" if column.role == "protected" else "it tells the model nothing"
        yield SchemaFinding(column.name, f"it has one category alone: {what}.", is_problem=column.role == "protected")
    folded = Counter(each.casefold().strip() for each in listed or ())
    twice = [each for each in listed or () if folded[each.casefold().strip()] > 1]
    if twice:
        text = f"{twice[0]!r} and {twice[1]!r} differ by case or blanks alone: is one of them a mistake?"
        yield SchemaFinding(column.name, text, is_problem=False)
    if isinstance(column.bounds, tuple):
        lower, upper = column.bounds
        for text in schema.missing_values:
            number = values.number(text)
            if number is not None and lower < number < upper:
                said = f"{text!r} lies within its bounds, and is read as missing: it is among missing_values."
                yield SchemaFinding(column.name, said, is_problem=False)


def _count_cells(counted: Counter[str], cells: Iterable[Any]) -> None:
    for cell in cells:
        text = "(a line that is no record)" if cell is UNREADABLE else values.text(cell) or f"({type(cell).__name__})"
        if text in counted or len(counted) < _DISTINCT:
            counted[text] += 1


def _examples(column: ColumnShares, declared: Column) -> str:
    if not column.wrong:
        return ": they are missing."
    listed = ", ".join(f"{text!r} ({count:,})" for text, count in column.wrong)
    if declared.bounds is None and declared.range is None and declared.categories is None:
        return f", such as {listed}. Correct the type, or say missing_values."
    if declared.categories is None:
        remedy = "Widen the bounds, " if column.outside else "Correct the type, "
        return f', such as {listed}. {remedy}say missing_values, or outside = "clamp".'
    return f", such as {listed}. {_misspelt(column.wrong[0][0], declared.categories)}"


def _misspelt(text: str, categories: Sequence[str]) -> str:
    near = difflib.get_close_matches(text, categories, 1)
    return f"The schema has {near[0]!r}: is it misspelt?" if near else "Add what is missing to the categories."


def _disagreements(column: Column, entry: CodebookEntry, schema: Schema) -> Iterator[tuple[str, bool]]:
    alike = {"boolean": "categorical", "datetime": "date"}
    if entry.type not in (None, "other", column.type, alike.get(column.type or "")):
        yield f"the codebook says it is {entry.type}, the schema {column.type}.", True
        return
    if column.role == "feature" and entry.role not in (None, "feature"):
        yield f"the codebook gives it the role {entry.role}, the schema that of a feature.", False
    absent = [code for code in entry.missing_values if not _is_missing(code, column, schema)]
    if absent:
        lines = toml.dumps({"missing_values": [*schema.missing_values, *absent]}, {})
        yield f"{absent[0]!r} means missing by the codebook. Write at the top of the schema: {lines.strip()}", True
    if isinstance(column.bounds, tuple):
        yield from _bounds_disagreements(column, column.bounds, entry)
    if column.categories is not None:
        yield from _category_disagreements(column.categories, entry)


def _is_missing(code: str, column: Column, schema: Schema) -> bool:
    return code in schema.missing_values or code in (column.categories or ())


def _bounds_disagreements(
    column: Column, bounds: tuple[float, float], entry: CodebookEntry
) -> Iterator[tuple[str, bool]]:
    lower = entry.lower if entry.lower is not None else bounds[0]
    upper = entry.upper if entry.upper is not None else bounds[1]
    said = f"bounds are {_pair(bounds)}, the codebook has {_pair((lower, upper))}"
    if lower < bounds[0] or upper > bounds[1]:
        became = "put on the nearest bound" if column.outside == "clamp" else "null records"
        yield f"{said}: values between them are {became}.", column.outside == "null"
    elif (lower, upper) != bounds:
        yield f"{said}: wider bounds than needed cost accuracy.", False


def _category_disagreements(categories: tuple[str, ...], entry: CodebookEntry) -> Iterator[tuple[str, bool]]:
    if not entry.categories:
        return
    known = {values.key(each): each for each in categories}
    described = {values.key(each): each for each in entry.categories}
    absent = [each for key, each in described.items() if key not in known]
    strange = [each for key, each in known.items() if key not in described]
    if absent:
        told = f"{absent[:_SHOWN]!r} of the codebook are no categories of the schema, so null records."
        yield f"{told} {_misspelt(absent[0], strange)}", True
    if strange:
        yield f"{strange[:_SHOWN]!r} of the schema are not in the codebook.", False


def _pair(bounds: tuple[float, float]) -> str:
    return f"[{bounds[0]:.12g}, {bounds[1]:.12g}]"
