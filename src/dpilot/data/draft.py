"""A schema to fill in, from what is public: the names of the columns, a codebook, a sample that is declared public."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from dpilot.data import toml, values
from dpilot.data.cells import UNREADABLE, plain
from dpilot.data.codebook import Codebook
from dpilot.data.column import NARROWEST, Column
from dpilot.data.files import Table, column_names
from dpilot.data.folders import NAMES, declare_folder
from dpilot.data.schema import Schema
from dpilot.data.wildcards import is_wildcard

__all__ = ["Draft", "draft_folder", "draft_schema", "read_sample"]

MISSING_TEXTS: Final = ("", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "?", ".")
_MOST: Final = 100  # different texts that are still taken for categories
_FEW: Final = 2  # different values that are taken for categories even if they are numbers
_CODES: Final = 12  # different whole numbers that may be codes
_WORDS: Final = 3  # words in a cell, on average, from which on it is free text


@dataclass(frozen=True, slots=True)
class Draft:
    """What is known of the columns so far; ``remarks`` are comments on them, for the person who fills in the rest."""

    columns: Mapping[str, Mapping[str, Any]]
    missing_values: tuple[str, ...] = ("",)
    remarks: Mapping[str, str] = field(default_factory=dict)

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Columns for which something is still to be written."""
        return tuple(name for name, declared in self.columns.items() if "?" in declared.values())

    def to_toml(self, origin: str) -> str:
        """The text of a schema file; no one can mistake an unfinished one for finished: "?" is refused."""
        top = {} if self.missing_values == ("",) else {"missing_values": list(self.missing_values)}
        return toml.skeleton(self.columns, top=top, remarks=self.remarks, origin=origin)


def draft_schema(names: Iterable[str] | None, codebook: Codebook | None = None, sample: Draft | None = None) -> Draft:
    """A draft for the columns ``names``, or for all that are described: by the codebook first, then by the sample.

    Edge cases:
        An entry of the codebook whose name is a wildcard stays one, and stands for the names that it matches.
    """
    book = {} if codebook is None else {name: entry.to_dict() for name, entry in codebook.entries.items()}
    seen = {} if sample is None else dict(sample.columns)
    wanted = tuple(dict.fromkeys([*book, *seen] if names is None else names))
    described = {**seen, **book}
    wild = [key for key in book if key not in wanted and is_wildcard(key)]
    columns: dict[str, Mapping[str, Any]] = {}
    for name in wanted:
        key = name if name in book else next((each for each in wild if fnmatchcase(name, each)), name)
        columns[key] = described.get(key, {"type": "?"})
    missing = ("", *(() if codebook is None else codebook.missing_values))
    missing += () if sample is None else sample.missing_values
    remarks = {} if sample is None else {name: text for name, text in sample.remarks.items() if name not in book}
    return Draft(columns, tuple(dict.fromkeys(missing)), {name: remarks[name] for name in columns if name in remarks})


def draft_folder(folder: str | Path) -> Draft:
    """What can be said of a folder of pictures without looking at one: its classes, by the names of its folders."""
    picture, target = NAMES
    remarks = {
        picture: "made so large: multiples of 4 for scattering",
        target: "the names of the folders: leave out one that is no class, or that nobody may know of",
    }
    return Draft(declare_folder(folder), remarks=remarks)


def read_sample(path: str | Path, *, encoding: str = "utf-8", delimiter: str = ",") -> Draft:
    """Types, ranges and categories of a file that is declared public: its values are read, exactly.

    Edge cases:
        The range of a sample is no domain, so numbers beyond it are put on the nearest bound (outside = "clamp").
        Two different values or fewer are categories, even if they are numbers; more than 100 different texts are not:
        they are free text if they have three words or more on average, and else the column is ignored. Usual texts for
        missing ("NA", "?") become missing_values where they are there.
    """
    names = column_names(path, encoding=encoding, delimiter=delimiter)
    anything = Schema({name: Column(name, "categorical", categories=("",)) for name in names})
    looks = {name: _Look() for name in names}
    for frame in Table.open(path, anything, encoding=encoding, delimiter=delimiter).frames():
        for name in names:
            looks[name].see(plain(frame[name]).tolist())
    found = {name: look.guess() for name, look in looks.items()}
    missing = tuple(text for text in MISSING_TEXTS if text == "" or any(text in look.absent for look in looks.values()))
    remarks = {name: remark for name, (_, remark) in found.items() if remark}
    return Draft({name: declared for name, (declared, _) in found.items()}, missing, remarks)


@dataclass(slots=True)
class _Look:
    """What the values of one public column have been so far."""

    absent: set[str] = field(default_factory=set)
    texts: dict[str, str] = field(default_factory=dict)
    numeric: bool = True
    whole: bool = True
    many: bool = False
    lower: float = math.inf
    upper: float = -math.inf
    times: bool = True
    days: bool = True
    first: float = math.inf
    last: float = -math.inf
    cells: int = 0
    words: int = 0

    def see(self, cells: Sequence[Any]) -> None:
        for cell in cells:
            self._see(cell)

    def _see(self, cell: Any) -> None:
        if cell is UNREADABLE:
            return
        if isinstance(cell, str) and cell.strip() in MISSING_TEXTS:
            self.absent.add(cell.strip())
            return
        key = values.key(cell)
        if key == "nan":
            return
        number = values.number(cell)
        if number is None or not math.isfinite(number) or isinstance(cell, bool):
            self.numeric = False
        else:
            self.lower, self.upper = min(self.lower, number), max(self.upper, number)
            self.whole &= number == int(number)
        self._see_time(cell)
        self.cells, self.words = self.cells + 1, self.words + len((values.text(cell) or "").split())
        if key is None:
            self.many = True
        elif key not in self.texts:
            self.many |= len(self.texts) >= _MOST
            if not self.many:
                self.texts[key] = (values.text(cell) or key).strip()

    def _see_time(self, cell: Any) -> None:
        found = values.moment(cell) if self.times else None
        self.times = found is not None
        if found is not None:
            self.first, self.last = min(self.first, found), max(self.last, found)
            self.days &= found % 86_400 == 0

    def guess(self) -> tuple[dict[str, Any], str]:
        """What a schema would say of the column, and a remark on it."""
        few = not self.many and len(self.texts) <= _FEW
        if not self.texts and not self.many:
            return {"role": "ignored"}, "no value in the sample"
        if self.numeric and NARROWEST <= self.upper - self.lower < math.inf and not few:
            remark = "the range of the sample: widen it where more is possible"
            if self.whole and len(self.texts) <= _CODES and not self.many:
                remark += "; if these are codes, declare categories"
            return {"type": "numeric", "bounds": [self.lower, self.upper], "outside": "clamp"}, remark
        if self.times and self.first < self.last and not few:
            ends = [values.moment_text(end) for end in (self.first, self.last)]
            kind = "date" if self.days else "datetime"
            remark = "the range of the sample: widen it where more is possible"
            return {"type": kind, "range": ends, "outside": "clamp"}, remark
        if self.many and self.words >= _WORDS * self.cells:
            return {"type": "text"}, f"more than {_MOST} different texts in the sample"
        if self.many:
            remark = (
                f'more than {_MOST} different texts in the sample; if they help, type = "categorical" and levels = '
            )
            return {"role": "ignored"}, remark + '"hash:256"'
        return {
            "type": "categorical",
            "categories": _in_order(self.texts.values()),
        }, "those of the sample: add others that are possible"


def _in_order(texts: Iterable[str]) -> list[str]:
    def place(text: str) -> tuple[bool, float, str]:
        number = values.number(text)
        known = number is not None and math.isfinite(number)
        return not known, number if known and number is not None else 0.0, text

    return sorted(texts, key=place)
