"""Which rows of a table belong to which unit (a person, a device), and which of them count.

>>> from dpilot.privacy.unit import PrivacyUnit
>>> rows = group_rows(["ann", "bob", None, "ann", "ann"], PrivacyUnit("patient_id", rows=2), key=bytes(32))
>>> rows.count, np.bincount(rows.units).tolist(), rows.shares.tolist()
(2, [2, 1], [0.5, 0.5, 1.0])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpilot._arrays import Floats, Indices
from dpilot.data.cells import Cells, objects, plain
from dpilot.data.values import key as value_key
from dpilot.privacy.unit import PrivacyUnit

__all__ = ["UnitRows", "UnitRowsBuilder", "UnitTable", "UnitTableBuilder", "group_rows"]

Usable = NDArray[np.bool_]

_NO_ID: Final = -1
_PART: Final = 1 << 16  # rows of a part on disk, and
_MOST_PARTS: Final = 1 << 10  # parts, each a file
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True, eq=False)
class UnitRows:
    """The rows that count, unit by unit: ``places`` in the table, and for each the number of its unit. Sensitive.

    ``units`` ascends, and numbers units in the order of their first row. The rows of a unit lie in a secret order, so
    the first of them is a row drawn uniformly.

    Guarantee:
        Which rows of a unit count, and in which order, is a function of the key, the unit's id and its number of rows:
        rows of other units, and how many there are, move nothing. A unit whose rows come after all others is the last.
    """

    places: Indices
    units: Indices
    count: int

    @property
    def sizes(self) -> Indices:
        """How many rows of each unit count."""
        return np.bincount(self.units, minlength=self.count).astype(np.int64)

    @property
    def shares(self) -> Floats:
        """What each row adds of its unit: those of one unit add up to 1, so a mean of bounded rows keeps the bound."""
        return 1.0 / self.sizes[self.units]

    @property
    def drawn(self) -> Indices:
        """The place of one row of each unit that has any, drawn uniformly: a table in which a unit is one record."""
        return self.places[np.flatnonzero(np.diff(self.units, prepend=-1))]

    def usable(self, mask: NDArray[np.bool_]) -> UnitRows:
        """The same without rows that are null: they take no part in their unit's mean."""
        return UnitRows(self.places[mask], self.units[mask], self.count)

    def first(self, rows: int) -> UnitRows:
        """The same with at most ``rows`` of each unit, drawn uniformly: what that cap would have kept."""
        kept = _rank(self.units) < rows
        return UnitRows(self.places[kept], self.units[kept], self.count)

    def take(self, chosen: Indices) -> UnitRows:
        """The rows of the units ``chosen``, ascending, numbered anew in their order."""
        number = np.full(self.count, _NO_ID, dtype=np.int64)
        number[chosen] = np.arange(len(chosen))
        kept = number[self.units] != _NO_ID
        return UnitRows(self.places[kept], number[self.units[kept]], len(chosen))


def group_rows(ids: Any, unit: PrivacyUnit, *, key: bytes, usable: Usable | None = None) -> UnitRows:
    """The rows of each unit, at most ``unit.rows`` of them; ``ids`` has one id for each row, ``key`` is secret.

    ``usable`` says which rows can count, by their own values alone: others are left out before any is chosen, and a
    unit that has no other row is a unit still, of no rows.

    Edge cases:
        1, 1.0, "1" and True are one id, as of every category; a whole number from 2^53 on is none, unless it is text
        of a file (``UnitRowsBuilder``), as a float would not tell it from the next
        a missing id    its row counts for nothing; with ``unit.missing == "row"`` it is a unit of its own
    """
    builder = UnitRowsBuilder(unit, key)
    builder.add(plain(ids) if hasattr(ids, "dtype") or hasattr(ids, "type") else objects(ids), usable)
    return builder.build()


class UnitRowsBuilder:
    """Reads ids some at a time; ``exact`` where no container can have turned whole numbers into floats: in a file.

    ``missing`` are texts that mean a missing id, compared by value as ids are.
    """

    def __init__(self, unit: PrivacyUnit, key: bytes, *, exact: bool = False, missing: Sequence[str] = ()) -> None:
        self._unit, self._key, self._exact = unit, key, exact
        self._missing = {_name(text, exact) for text in missing}
        self._numbers: dict[str, int] = {}  # of each id, in the order of first rows
        self._digests: list[bytes] = []
        self._codes: list[Indices] = []
        self._usable: list[Usable] = []

    def add(self, cells: Cells, usable: Usable | None = None) -> None:
        """The ids of the next rows, and which of these are ``usable``: all, where nothing is said."""
        names = _names(cells, self._exact)
        self._codes.append(np.fromiter(map(self._number, names), np.int64, len(cells)))
        self._usable.append(np.ones(len(cells), dtype=np.bool_) if usable is None else usable)

    def build(self) -> UnitRows:
        """The rows that count."""
        codes = np.concatenate([np.empty(0, dtype=np.int64), *self._codes])
        kept = np.flatnonzero((codes != _NO_ID) & np.concatenate([np.empty(0, dtype=np.bool_), *self._usable]))
        grouped = kept[np.argsort(codes[kept], kind="stable")]
        seeds = np.frombuffer(b"".join(self._digests), dtype="<u8")[::2]
        units = codes[grouped]
        nth = _rank(units)
        order = np.lexsort((_order(seeds[units], nth), units))  # a unit's rows stay together
        chosen = grouped[order[nth < (self._unit.rows or 1)]]  # as units ascend in both orders
        return UnitRows(chosen, codes[chosen], len(seeds))

    def _number(self, name: str | None) -> int:
        if name is None or name in self._missing:
            return self._new_unit("row") if self._unit.missing == "row" else _NO_ID
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = self._new_unit(name)
        return number

    def _new_unit(self, name: str) -> int:
        self._digests.append(_digest(name, self._key))
        return len(self._digests) - 1


@dataclass(frozen=True, slots=True)
class UnitTable:
    """A table of numbers on disk, grouped by unit: whole units in each of its ``parts``. Sensitive."""

    folder: Path
    parts: int
    columns: int
    count: int

    def read(self, part: int) -> tuple[Floats, Indices]:
        """The rows of one part that count, those of a unit together in a secret order, and where each unit starts."""
        path = self.folder / f"{part}.npz"
        if not path.exists():
            return np.empty((0, self.columns)), np.empty(0, dtype=np.int64)
        with np.load(path) as kept:
            return kept["values"], kept["starts"]


class UnitTableBuilder:
    """Groups ``length`` rows of numbers, in any order, that do not fit in memory; by way of files in ``folder``.

    ::

        add      (digest of the id, values) -> the file of that part of all digests
        build    part after part, some rows at a time: keep those of each unit that are first in its secret order

    Guarantee:
        The rows that count are those of ``group_rows`` where finite rows are usable. No id is written, only keyed
        digests of 128 bits: two ids fall together with a probability below length^2 / 2^129.

    Edge cases:
        Memory holds some 2^16 rows at a time and the rows of one part that count, however many rows one unit has: also
        2^16 up to 2^26 rows in all, and a 1024th of these beyond.
    """

    def __init__(self, unit: PrivacyUnit, key: bytes, folder: Path, length: int, columns: int) -> None:
        self._unit, self._key, self._folder = unit, key, folder
        self._parts = min(max(-(-length // _PART), 1), _MOST_PARTS)
        self._row = np.dtype([("digest", "<u8", 2), ("values", "<f8", columns)])
        self._alone = 0

    def add(self, cells: Cells, values: Floats) -> None:
        """The ids of the next rows, and these rows."""
        digests = list(map(self._digest, _names(cells, exact=True)))
        known = np.array([digest is not None for digest in digests], dtype=np.bool_)
        rows = np.empty(int(known.sum()), dtype=self._row)
        rows["digest"] = np.frombuffer(b"".join(filter(None, digests)), dtype="<u8").reshape(-1, 2)
        rows["values"] = values[known]
        part = rows["digest"][:, 1] % np.uint64(self._parts)
        order = np.argsort(part, kind="stable")
        ends = np.searchsorted(part[order], np.arange(self._parts + 1))
        for number in np.flatnonzero(np.diff(ends)).tolist():
            with (self._folder / f"{number}").open("ab") as file:
                rows[order[ends[number] : ends[number + 1]]].tofile(file)

    def build(self) -> UnitTable:
        """The rows that count."""
        columns = self._row["values"].shape[0]
        return UnitTable(self._folder, self._parts, columns, sum(map(self._choose_rows, range(self._parts))))

    def _digest(self, name: str | None) -> bytes | None:
        if name is None and self._unit.missing == "row":
            self._alone += 1
            return _digest(str(self._alone), self._key, b"dpilot row")  # a unit that has no other row
        return None if name is None else _digest(name, self._key)

    def _choose_rows(self, number: int) -> int:
        """Write down the rows of one part that count; how many units it has."""
        path = self._folder / f"{number}"
        if not path.exists():
            return 0
        seen: dict[bytes, int] = {}
        kept = np.empty(0, dtype=[*self._row.descr, ("order", "<u8")])
        for start in range(0, path.stat().st_size, _PART * self._row.itemsize):
            rows = np.fromfile(path, dtype=self._row, count=_PART, offset=start)
            kept = _first_of_each(np.concatenate([kept, _order_rows(rows, seen, kept.dtype)]), self._unit)
        path.unlink()
        np.savez(self._folder / f"{number}.npz", values=kept["values"], starts=np.flatnonzero(_firsts(kept["digest"])))
        return len(seen)


def _names(cells: Cells, exact: bool) -> Iterator[str | None]:
    """The text by which each id is compared; None for a missing one."""
    if cells.dtype.kind not in "fiub":
        return (_name(cell, exact) for cell in cells.tolist())
    values, inverse = np.unique(cells, return_inverse=True)
    each = [_name(value, exact) for value in values.tolist()]
    return (each[place] for place in inverse.reshape(-1).tolist())


def _name(cell: Any, exact: bool) -> str | None:
    name = value_key(cell)
    if name is None and exact and type(cell) in (str, int):
        name = str(cell).strip()
    return None if name in (None, "nan", "") else name


def _digest(name: str, key: bytes, person: bytes = b"dpilot unit") -> bytes:
    """16 bytes; the first eight are the seed of what is chosen."""
    return blake2b(name.encode("utf-8", "surrogatepass"), key=key, digest_size=16, person=person).digest()


def _order_rows(rows: NDArray[Any], seen: dict[bytes, int], form: np.dtype[Any]) -> NDArray[Any]:
    """The finite rows, each with its place in the secret order of its unit; ``seen`` counts those of each unit."""
    rows = rows[np.lexsort(rows["digest"].T)]  # stable: the rows of a unit stay in order
    first = _firsts(rows["digest"])
    units, finite = np.cumsum(first) - 1, np.isfinite(rows["values"]).all(axis=1)
    names = rows["digest"][first].view("V16").ravel().tolist()
    before = np.array([seen.get(name, 0) for name in names], dtype=np.int64)
    counts = np.bincount(units, finite, minlength=len(names)).astype(np.int64)
    seen.update(zip(names, (before + counts).tolist(), strict=True))
    made = np.empty(int(finite.sum()), dtype=form)
    made["digest"], made["values"] = rows["digest"][finite], rows["values"][finite]
    made["order"] = _order(made["digest"][:, 0], before[units[finite]] + _rank(units[finite]))
    return made


def _first_of_each(rows: NDArray[Any], unit: PrivacyUnit) -> NDArray[Any]:
    """The rows of each unit that are first in its order, as many as count."""
    rows = rows[np.lexsort((rows["order"], *rows["digest"].T))]
    return np.asarray(rows[_rank(np.cumsum(_firsts(rows["digest"]))) < (unit.rows or 1)])


def _firsts(digests: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which rows are the first of their unit, where equal digests lie together."""
    first = np.ones(len(digests), dtype=np.bool_)
    first[1:] = (digests[1:] != digests[:-1]).any(axis=1)
    return first


def _rank(units: Indices) -> Indices:
    """The number of each row among those of its unit, where these lie together."""
    starts = np.flatnonzero(np.diff(units, prepend=-1))
    return np.arange(len(units)) - np.repeat(starts, np.diff(starts, append=len(units)))


def _order(seeds: NDArray[np.uint64], nth: Indices) -> NDArray[np.uint64]:
    """Where the nth row of a unit stands in its secret order."""
    return _mix(seeds + nth.astype(np.uint64) * _GOLDEN)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64: a permutation of 64-bit words whose output looks uniform for counted inputs."""
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(values ^ (values >> np.uint64(31)))
