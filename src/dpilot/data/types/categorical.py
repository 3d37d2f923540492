"""One of several values: declared one by one, true or false, or so many that they are hashed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.random import Generator

from dpilot._arrays import Indices
from dpilot.data import values
from dpilot.data.cells import UNREADABLE, Cells
from dpilot.data.reading import ABSENT, WRONG, cell_keys, codes, missing_keys
from dpilot.data.types.base import NULL, Block, CellState, Reading, States

if TYPE_CHECKING:
    from dpilot.data.column import Column

__all__ = ["BOOLEAN", "TRUTH", "Bought", "Categorical", "Hashed", "bucket"]

_SHOWN: Final = 8  # categories that a sentence lists
_MOST: Final = 1 << 16  # buckets of hashed categories
_HASH: Final = "hash:"

TRUTH: Final = ("False", "True")
"""The categories of a boolean column."""

_SPELLED: Final[dict[str | None, int]] = {
    **dict.fromkeys(("1", "true", "t", "yes", "y", "on"), 1),
    **dict.fromkeys(("0", "false", "f", "no", "n", "off"), 0),
}


@dataclass(frozen=True, slots=True)
class Categorical:
    """One of the declared categories: one encoded column for each, 1 in its own, and none where missing.

    ``ordered`` adds one more column: the place of the category, from -1 (the first) to 1 (the last).
    """

    domain: str = "categories"
    example: str = '["a", "b"]'
    keys: tuple[str, ...] = ("categories", "levels", "ordered")
    has_groups: bool = True
    is_target: bool = True
    is_unit: bool = False
    code: Callable[[Cells, Sequence[str], Sequence[str]], Indices] = codes

    def settle(self, column: Column) -> dict[str, Any]:
        if not isinstance(column.ordered, bool):
            column.refuse(f"ordered is {column.ordered!r}: expected true or false")
        return {}

    def flaws(self, column: Column) -> tuple[CellState, ...]:
        return (CellState.MISSING, CellState.UNKNOWN, CellState.UNREADABLE)

    def read(self, cells: Cells, column: Column, missing: Sequence[str]) -> Reading:
        found = self.code(cells, column.categories or (), missing)
        return Reading(np.where(found >= 0, found.astype(np.float64), np.nan), _code_states(found, cells))

    def names(self, column: Column) -> list[str]:
        each = [f"{column.name}={category}" for category in column.categories or ()]
        return [*each, f"place of {column.name}"] if column.ordered else each

    def lowest(self, column: Column) -> list[float]:
        return [0.0] * len(column.categories or ()) + [-1.0] * bool(column.ordered)

    def fill(self, block: Block, values: Cells, column: Column) -> None:
        known = np.flatnonzero(~np.isnan(values))
        places = values[known].astype(np.int64)
        block[known, places] = 1
        if column.ordered:
            block[known, len(column.categories or ())] = 2 * places / max(len(column.categories or ()) - 1, 1) - 1

    def describe(self, column: Column) -> str:
        listed = column.categories or ()
        kind = "classes" if column.role == "target" else "categories"
        more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
        order = ", in this order" if column.ordered else ""
        return f"one of {len(listed)} {kind} ({', '.join(map(repr, listed[:_SHOWN]))}{more}){order}"

    def describe_outside(self, column: Column) -> str:
        became = "a column of its own says so" if column.outside == "indicator" else NULL
        return f"An unknown {'class' if column.role == 'target' else 'category'}: {became}"

    def invent(self, column: Column) -> dict[str, str]:
        listed, strange = column.categories or (), "no such value"
        while strange in map(values.key, listed):
            strange += "!"
        return {**{f"category {place + 1}": each for place, each in enumerate(listed)}, "unknown": strange}

    def draw(self, column: Column, rows: int, rng: Generator) -> Any:
        listed = np.asarray(column.categories, dtype=object)
        return listed[rng.integers(len(listed), size=rows)]


def spellings() -> dict[str, int]:
    """Texts that mean true (1) or false (0), in lower case."""
    return {text: code for text, code in _SPELLED.items() if text is not None}


def truth_codes(cells: Cells, categories: Sequence[str], missing: Sequence[str]) -> Indices:
    """0 for false, 1 for true, as such, as a number or as a text in any case: true, t, yes, y, on, and their opposites.

    >>> truth_codes(np.array([True, "no", 1.0, "T", None, 2, "maybe"], dtype=object), TRUTH, ("",)).tolist()
    [1, 0, 1, 1, -1, -2, -2]
    """
    del categories
    absent = missing_keys(missing)
    known: dict[str | None, int] = {**dict.fromkeys(absent, ABSENT), **_SPELLED}
    keys = cell_keys(cells)
    return np.fromiter((known.get(each.casefold() if each else each, WRONG) for each in keys), np.int64, len(keys))


BOOLEAN: Final = Categorical(domain="", example="", keys=(), code=truth_codes)


class Hashed:
    """So many categories that nobody lists them: one of ``levels = "hash:256"`` columns, by a public hash of the value.

    Edge cases:
        Values that share a column are one to a model. No value is unknown; a missing one is none of them. What is no
        single value, and a whole number from 2^53 on (``values.key``), cannot be told from others: its record is null.
    """

    domain: Final = "levels"
    example: Final = '"hash:256"'
    keys: Final = ("levels",)
    has_groups: Final = False
    is_target: Final = False
    is_unit: Final = False

    def settle(self, column: Column) -> dict[str, Any]:
        written = str(column.levels).removeprefix(_HASH)
        if not str(column.levels).startswith(_HASH) or not written.isdecimal() or not 2 <= int(written) <= _MOST:
            column.refuse(
                f'levels are {column.levels!r}: expected "hash:K" with K from 2 to {_MOST}, as "hash:256", or the '
                "name of a file of public values, one a line, beside the schema"
            )
        if column.categories is not None:
            column.refuse("it has levels and categories: expected one of them")
        if column.ordered:
            column.refuse("ordered is true, but hashed levels have no order: declare categories in theirs")
        return {}

    def flaws(self, column: Column) -> tuple[CellState, ...]:
        return (CellState.MISSING, CellState.UNREADABLE)

    def read(self, cells: Cells, column: Column, missing: Sequence[str]) -> Reading:
        absent, width = missing_keys(missing), _buckets(column)
        keys = cell_keys(cells)
        known: dict[str | None, float] = {key: bucket(key, width) for key in set(keys) if key is not None}
        known |= dict.fromkeys([*absent, None], np.nan)
        found = np.fromiter((known[key] for key in keys), np.float64, len(keys))
        states = np.zeros(len(keys), dtype=np.int8)
        states[[place for place, key in enumerate(keys) if key in absent]] = CellState.MISSING
        states[[place for place, key in enumerate(keys) if key is None]] = CellState.UNREADABLE
        return Reading(found, states)

    def names(self, column: Column) -> list[str]:
        return [f"{column.name}#{place}" for place in range(_buckets(column))]

    def lowest(self, column: Column) -> list[float]:
        return [0.0] * _buckets(column)

    def fill(self, block: Block, values: Cells, column: Column) -> None:
        known = np.flatnonzero(~np.isnan(values))
        block[known, values[known].astype(np.int64)] = 1

    def describe(self, column: Column) -> str:
        return f"any single value, in one of {_buckets(column)} columns by a public hash of it"

    def describe_outside(self, column: Column) -> str:
        return f"No single value: {NULL}"

    def invent(self, column: Column) -> dict[str, str]:
        return {"a value": "a", "another value": "b"}

    def draw(self, column: Column, rows: int, rng: Generator) -> Any:
        return rng.integers(10 * _buckets(column), size=rows).astype(str).astype(object)


class Bought:
    """The classes of a target that nobody declares: ``levels = "buy"``; a fit pays for those of many records.

    Values are the keys of the cells (``values.key``), texts by which equal values of any type are one class.

    Edge cases:
        What is no single value, an infinity, a whole number from 2^53 on and a text that no file can hold (the name of
        a folder that is no UTF-8) name no class: the record is null.
    """

    domain: Final = "levels"
    example: Final = '"buy"'
    keys: Final = ("levels",)
    has_groups: Final = False
    is_target: Final = True
    is_unit: Final = False

    def settle(self, column: Column) -> dict[str, Any]:
        if column.role != "target":
            column.refuse(
                'levels are "buy", but it is not the target: only classes are bought. Declare categories, or '
                'levels = "hash:256"'
            )
        if column.categories is not None or column.ordered:
            column.refuse('levels are "buy" beside categories or their order: expected one of them')
        return {}

    def flaws(self, column: Column) -> tuple[CellState, ...]:
        return (CellState.MISSING, CellState.UNREADABLE)

    def read(self, cells: Cells, column: Column, missing: Sequence[str]) -> Reading:
        absent = missing_keys(missing)
        keys = cell_keys(cells)
        states = np.zeros(len(keys), dtype=np.int8)
        states[[place for place, key in enumerate(keys) if key in absent]] = CellState.MISSING
        states[[place for place, key in enumerate(keys) if not _is_name(key)]] = CellState.UNREADABLE
        found = np.array([*keys, None], dtype=object)[:-1]
        found[states != CellState.FINE] = None
        return Reading(found, states)

    def names(self, column: Column) -> list[str]:
        return []

    def lowest(self, column: Column) -> list[float]:
        return []

    def fill(self, block: Block, values: Cells, column: Column) -> None:
        """A target is no part of a row."""

    def describe(self, column: Column) -> str:
        return "one of the classes that are bought, those of many records"

    def describe_outside(self, column: Column) -> str:
        return f"A class of few records: {NULL}"

    def invent(self, column: Column) -> dict[str, str]:
        return {"a value": "a", "another value": "b"}

    def draw(self, column: Column, rows: int, rng: Generator) -> Any:
        return rng.integers(2, size=rows).astype(str).astype(object)


def bucket(key: str, buckets: int) -> int:
    """Where a category is counted: a public hash of its key, the same in every process and version.

    >>> bucket("Ulm", 256), bucket("Bern", 256)
    (141, 96)
    """
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8, person=b"dpilot.levels").digest()
    return int.from_bytes(digest, "big") % buckets


def _is_name(key: str | None) -> bool:
    """Whether it can be a class: a text that every file can hold, and no infinity."""
    return key not in (None, "", "inf", "-inf") and not any("\ud800" <= each <= "\udfff" for each in key or "")


def _buckets(column: Column) -> int:
    return int(str(column.levels).removeprefix(_HASH))


def _code_states(found: Indices, cells: Cells) -> States:
    states = np.zeros(found.shape, dtype=np.int8)
    states[found == ABSENT] = CellState.MISSING
    wrong = np.flatnonzero(found == WRONG)
    states[wrong] = CellState.UNKNOWN
    if cells.dtype == object:
        states[[place for place in wrong.tolist() if cells[place] is UNREADABLE]] = CellState.UNREADABLE
    return states
