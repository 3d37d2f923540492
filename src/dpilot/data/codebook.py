"""A codebook: a public csv file that describes a table, one line a column, as studies and registers publish it.

>>> import tempfile, pathlib
>>> path = pathlib.Path(tempfile.mkdtemp(), "codebook.csv")
>>> _ = path.write_text("variable,type,min,max,values\\nage,integer,17,90,\\nsex,factor,,,Female|Male\\n")
>>> [entry.to_dict() for entry in Codebook.load(path).entries.values()]
[{'type': 'numeric', 'bounds': [17.0, 90.0]}, {'type': 'categorical', 'categories': ['Female', 'Male']}]
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from dpilot import _validate
from dpilot.data import values
from dpilot.errors import InvalidInput

__all__ = ["Codebook", "CodebookEntry"]

_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "name": ("name", "variable", "variablename", "varname", "column", "columnname", "field", "fieldname", "attribute"),
    "type": ("type", "datatype", "dtype", "kind", "variabletype", "fieldtype", "columntype"),
    "min": ("min", "minimum", "lower", "low", "lowerbound", "minvalue"),
    "max": ("max", "maximum", "upper", "high", "upperbound", "maxvalue"),
    "categories": ("categories", "category", "values", "levels", "choices", "codes", "classes", "allowedvalues"),
    "role": ("role", "use", "usage"),
    "missing": ("missing", "missingvalues", "missingcodes", "navalues", "na"),
}
_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "numeric": (
        *("numeric", "number", "num", "integer", "int", "int64", "float", "float64", "double", "real", "decimal"),
        *("continuous", "quantitative", "interval", "ratio", "count"),
    ),
    "categorical": ("categorical", "category", "factor", "nominal", "ordinal", "enum", "choice", "class", "binary"),
    "date": ("date", "datetime", "timestamp"),
    "truth": ("boolean", "bool", "logical", "truefalse"),
    "other": ("text", "string", "str", "char", "character", "object", "time", "id"),
}
_ROLES: Final[Mapping[str, tuple[str, ...]]] = {
    "feature": ("feature", "input", "predictor", "covariate", "independent"),
    "target": ("target", "label", "outcome", "response", "dependent", "output"),
    "protected": ("protected", "sensitive", "group"),
    "unit": ("unit", "person", "subject", "unitid"),
    "ignored": ("ignored", "ignore", "unused", "drop", "exclude", "excluded", "id", "identifier"),
}
_RULES: Final = ("indicator", "null")
_BETWEEN: Final = "|"


@dataclass(frozen=True, slots=True)
class CodebookEntry:
    """What a codebook says of one column; None where it says nothing. ``missing_values`` are its codes for missing."""

    name: str
    type: str | None = None
    lower: float | None = None
    upper: float | None = None
    categories: tuple[str, ...] = ()
    role: str | None = None
    missing: str | None = None
    missing_values: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """What a schema would say of the column, with "?" for what it must say and the codebook does not."""
        if self.role in ("unit", "ignored") or self.type == "other":
            return {"role": "unit" if self.role == "unit" else "ignored"}
        declared: dict[str, Any] = {"type": self.type or "?"}
        if self.type == "numeric":
            known = self.lower is not None and self.upper is not None
            declared["bounds"] = [self.lower, self.upper] if known else "?"
        if self.type == "date":
            declared["range"] = [values.moment_text(end) for end in (self.lower, self.upper) if end is not None]
        if self.type == "categorical":
            declared["categories"] = list(self.categories) or "?"
        if self.role not in (None, "feature"):
            declared["role"] = self.role
        if self.missing is not None:
            declared["missing"] = self.missing
        return declared


@dataclass(frozen=True, slots=True)
class Codebook:
    """The entries of a codebook by the names of their columns.

    The header names the fields: ``name``, ``type``, ``min``, ``max``, ``categories`` (separated by |), ``role``, and
    ``missing`` (the codes that mean missing, separated by |, or "indicator" or "null" as in a schema). Only ``name`` is
    needed; common other spellings are understood, and fields of other names are left alone.

    Edge cases:
        A type that is not given follows from the rest: categories make it categorical, min and max numeric. Dates have
        min and max as dates; texts, and dates without both, become columns to ignore where they have no categories.
        The delimiter is a comma, a semicolon or a tab.
    """

    entries: Mapping[str, CodebookEntry]

    @classmethod
    def load(cls, path: str | Path) -> Codebook:
        """The codebook of a csv file. It is read as it is: it must hold no records."""
        where = Path(path)
        rows = _rows(where)
        if not rows:
            raise InvalidInput(f"{where.name} is empty: expected a header with the field name, and a line a column.")
        places = _places(rows[0][1], where.name)
        entries: dict[str, CodebookEntry] = {}
        for line, row in rows[1:]:
            cells = {field: row[place].strip() for field, place in places.items() if place < len(row)}
            if not any(cells.values()):
                continue
            entry = _Line(f"{where.name}, line {line}", cells).entry()
            if entry.name in entries:
                raise InvalidInput(f"{where.name}, line {line}: {entry.name!r} is there twice: expected it once.")
            entries[entry.name] = entry
        return cls(entries)

    @property
    def missing_values(self) -> tuple[str, ...]:
        """All codes that mean missing, in any column."""
        return tuple(dict.fromkeys(code for entry in self.entries.values() for code in entry.missing_values))


@dataclass(frozen=True, slots=True)
class _Line:
    """The cells of one line of a codebook by their fields."""

    source: str
    cells: Mapping[str, str]

    def entry(self) -> CodebookEntry:
        name = self.cells.get("name", "")
        if not name:
            self._refuse("name", "", "the name of a column")
        kind = self._one_of("type", _TYPES)
        lower, upper = self._number("min", kind), self._number("max", kind)
        if lower is not None and upper is not None and not lower < upper:
            self._refuse("min", self.cells["min"], f"a number below max, which is {self.cells['max']}")
        categories = _split(self.cells.get("categories", ""))
        if kind == "date" and (lower is None or upper is None):
            kind = "other"
        if kind in (None, "other"):
            both = lower is not None and upper is not None
            kind = "categorical" if categories else "numeric" if both else kind
        if kind == "truth":
            kind, categories = "categorical", categories or ("False", "True")
        missing = self.cells.get("missing", "")
        rule = missing.casefold() if missing.casefold() in _RULES else None
        codes = () if rule else _split(missing)
        kept = tuple(each for each in categories if each not in codes)
        return CodebookEntry(name, kind, lower, upper, kept, self._one_of("role", _ROLES), rule, codes)

    def _number(self, field: str, kind: str | None) -> float | None:
        """A number, or the seconds of a date."""
        text = self.cells.get(field, "")
        if not text:
            return None
        if kind == "date":
            found = values.moment(text)
            if found is None:
                self._refuse(field, text, "a date, as 2020-01-31, or nothing")
            return found
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            self._refuse(field, text, "a finite number, or nothing")
        return value

    def _one_of(self, field: str, spellings: Mapping[str, Iterable[str]]) -> str | None:
        text = self.cells.get(field, "")
        if not text:
            return None
        found = _meaning(text, spellings)
        if found is None:
            known = [each for spelled in spellings.values() for each in spelled]
            self._refuse(field, text, "a known one", _validate.suggest(text, known, f": as {', '.join(spellings)}."))
        return found

    def _refuse(self, field: str, text: str, rule: str, end: str = ".") -> NoReturn:
        raise InvalidInput(f"{self.source}: {field} is {text!r}: expected {rule}{end}")


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """The rows that are not blank, each with the line it ends on."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        first = text.partition("\n")[0]
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=first.count))
        return [(reader.line_num, row) for row in reader if row]
    except (OSError, ValueError, csv.Error) as problem:
        reason = getattr(problem, "strerror", None) or "not UTF-8 csv text"
        raise InvalidInput(f"the codebook is {str(path)!r}: expected a readable csv file ({reason}).") from None


def _places(header: list[str], source: str) -> dict[str, int]:
    places: dict[str, int] = {}
    for place, cell in enumerate(header):
        field = _meaning(cell, _FIELDS)
        if field is not None:
            if field in places:
                raise InvalidInput(
                    f"{source}: fields {header[places[field]]!r} and {cell!r} both mean {field}: expected one of them."
                )
            places[field] = place
    if "name" not in places:
        raise InvalidInput(
            f"{source} has the fields {header[:8]!r}: expected one called name (or variable, column, field) with the "
            "names of the columns."
        )
    return places


def _meaning(text: str, spellings: Mapping[str, Iterable[str]]) -> str | None:
    plain = "".join(filter(str.isalnum, text.casefold()))
    return next((name for name, spelled in spellings.items() if plain in spelled), None)


def _split(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.strip() for each in text.split(_BETWEEN))) if text.strip() else ()
