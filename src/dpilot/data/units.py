"""Which rows of a table belong to which unit (a person, a device), and which of them count.

>>> from dpilot.privacy.unit import PrivacyUnit
>>> rows = group_rows(["ann", "bob", None, "ann", "ann"], PrivacyUnit("patient_id", rows=2), key=bytes(32))
>>> rows.count, np.bincount(rows.units).tolist(), rows.shares.tolist()
(2, [2, 1], [0.5, 0.5, 1.0])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpilot._arrays import Floats, Indices
from dpilot.data.cells import Cells, objects, plain
from dpilot.data.disk import Buckets, DiskArray, DiskArrayBuilder, DiskSort, blocks_of
from dpilot.data.values import WHOLE
from dpilot.data.values import key as value_key
from dpilot.privacy.unit import PrivacyUnit

__all__ = [
    "UnitRows",
    "UnitRowsBuilder",
    "UnitRowsOnDisk",
    "UnitTable",
    "UnitTableBuilder",
    "UnitsOnDisk",
    "cut_units",
    "group_rows",
]

Usable = NDArray[np.bool_]

_NO_ID: Final = -1
_PART: Final = 1 << 16  # rows of a part on disk, and
_MOST_PARTS: Final = 1 << 10  # parts
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

    def find(self, numbers: Indices) -> tuple[Indices, Indices]:
        """The places of the rows of some units, unit by unit, and how many rows each has."""
        first, end = np.searchsorted(self.units, [numbers, numbers + 1])
        sizes = end - first
        shift = first - (np.cumsum(sizes) - sizes)  # from the place among these rows to that among all
        return self.places[np.arange(sizes.sum()) + np.repeat(shift, sizes)], sizes

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


@dataclass(frozen=True, slots=True, eq=False)
class UnitTable:
    """A table of numbers on disk, grouped by unit: whole units in each of its ``parts``. Sensitive."""

    values: DiskArray
    starts: DiskArray
    ends: tuple[tuple[int, int], ...]  # of the rows and of the units of each part
    count: int

    @property
    def parts(self) -> int:
        return len(self.ends)

    @property
    def columns(self) -> int:
        return self.values.shape[1]

    def read(self, part: int) -> tuple[Floats, Indices]:
        """The rows of one part that count, those of a unit together in a secret order, and where each unit starts."""
        first, begin = self.ends[part - 1] if part else (0, 0)
        last, end = self.ends[part]
        return self.values[first:last], self.starts[begin:end]


@dataclass(frozen=True, slots=True, eq=False)
class UnitRowsOnDisk:
    """``UnitRows`` of a table that is too long for memory. Sensitive.

    ``nth``: the number of each row among those of its unit that count.
    """

    places: DiskArray
    units: DiskArray
    nth: DiskArray
    count: int

    def blocks(self, most: int | None = None) -> Iterator[tuple[Indices, Indices, Indices]]:
        """Places, units and nth, whole units at a time; at most so many rows of each, as ``UnitRows.first``."""
        for place in cut_units(self.units):
            found = self.places[place], self.units[place], self.nth[place]
            kept = slice(None) if most is None else found[2] < most
            yield found[0][kept], found[1][kept], found[2][kept]

    @property
    def sizes(self) -> Iterator[Indices]:
        """How many rows of each unit count, some units at a time."""
        for _, units, nth in self.blocks():
            yield np.diff(np.flatnonzero(nth == 0), append=len(units))


@dataclass(frozen=True, slots=True, eq=False)
class UnitsOnDisk:
    """Whose each row of a part is: rows of one unit lie together, the first of them drawn. As ``UnitRows``, on disk."""

    units: DiskArray
    shares: DiskArray  # what each row adds of its unit: those of one unit add up to 1
    starts: DiskArray  # of the rows of each unit, and the number of rows
    count: int

    @classmethod
    def of(cls, units: DiskArray, count: int) -> UnitsOnDisk:
        """Those of rows whose units are ``units``, ascending and below ``count``: some may have no row."""
        shares, starts = DiskArrayBuilder(np.float64), DiskArrayBuilder(np.int64)
        for place in cut_units(units):
            some = units[place]
            _, which, sizes = np.unique(some, return_inverse=True, return_counts=True)
            shares.append(1.0 / sizes[which])
            numbers = np.arange(len(starts), some[-1] + 1)
            starts.append(np.searchsorted(some, numbers) + place.start)
        for first in range(len(starts), count + 1, _PART):
            starts.append(np.full(min(_PART, count + 1 - first), len(units)))
        return cls(units, shares.build(), starts.build(), count)

    def find(self, numbers: Indices) -> tuple[Indices, Indices]:
        """The places of the rows of some units, unit by unit, and how many rows each has."""
        first, end = self.starts[numbers], self.starts[numbers + 1]
        sizes = end - first
        shift = first - (np.cumsum(sizes) - sizes)
        return np.arange(sizes.sum()) + np.repeat(shift, sizes), sizes

    def behind_null(self) -> UnitsOnDisk:
        """The same behind one unit of one row."""
        moved = DiskArrayBuilder(np.int64)
        moved.append(np.zeros(1, dtype=np.int64))
        for some in blocks_of(self.starts, _PART):
            moved.append(some + 1)
        return replace(self, starts=moved.build(), count=self.count + 1)


def cut_units(units: Any, rows: int = 1 << 16) -> Iterator[slice]:
    """Where whole units lie, at most ``rows`` rows at a time; ``units``, the unit of each row, ascend.

    >>> list(cut_units(np.array([0, 0, 1, 2, 2]), 3))
    [slice(0, 3, None), slice(3, 5, None)]
    """
    start = 0
    while start < len(units):
        some = np.asarray(units[start : start + rows + 1])
        stop = start + len(some)
        if len(some) > rows:
            ends = np.flatnonzero(some[1:] != some[:-1])
            assert ends.size, "a unit is longer than what is read at a time"
            stop = start + int(ends[-1]) + 1
        yield slice(start, stop)
        start = stop


class UnitTableBuilder:
    """Groups ``length`` rows of numbers, in any order, that do not fit in memory; by way of files without names.

    ::

        add      (digest of the id, place, values) -> the bucket of that part of all digests
        build    bucket after bucket, some rows at a time: keep those of each unit that are first in its secret order

    Guarantee:
        The rows that count are those of ``group_rows`` where finite rows are usable. No id is written, only keyed
        digests of 128 bits: two ids fall together with a probability below length^2 / 2^129.

    Edge cases:
        Memory holds some 2^16 rows at a time and the rows of one part that count, however many rows one unit has: also
        2^16 up to 2^26 rows in all, and a 1024th of these beyond.
        ``exact`` and ``missing`` are those of ``UnitRowsBuilder``.
    """

    def __init__(
        self,
        unit: PrivacyUnit,
        key: bytes,
        length: int,
        columns: int = 0,
        *,
        exact: bool = True,
        missing: Sequence[str] = (),
    ) -> None:
        self._unit, self._key, self._columns, self._exact = unit, key, columns, exact
        self._missing = {_name(text, exact) for text in missing}
        self._row = np.dtype([("digest", "<u8", 2), ("place", "<i8"), ("values", "<f8", (columns,))])
        self._buckets = Buckets(min(max(-(-length // _PART), 1), _MOST_PARTS), self._row)
        self._place = self._alone = 0

    def add(self, cells: Cells, values: Floats | None = None) -> None:
        """The ids of the next rows, and these rows."""
        digests = list(map(self._digest, _names(cells, self._exact)))
        known = np.array([digest is not None for digest in digests], dtype=np.bool_)
        rows = np.empty(int(known.sum()), dtype=self._row)
        rows["digest"] = np.frombuffer(b"".join(filter(None, digests)), dtype="<u8").reshape(-1, 2)
        rows["place"] = np.flatnonzero(known) + self._place
        if values is not None:
            rows["values"] = values[known]
        self._place += len(known)
        part = rows["digest"][:, 1] % np.uint64(self._buckets.count)
        self._buckets.add(part.astype(np.int64), rows)

    def build(self) -> UnitTable:
        """The rows that count, part after part."""
        values, starts = DiskArrayBuilder(np.float64, (self._columns,)), DiskArrayBuilder(np.int64)
        ends, count = list[tuple[int, int]](), 0
        for kept, seen in self._parts():
            values.append(kept["values"])
            starts.append(np.flatnonzero(_firsts(kept["digest"])))
            ends.append((len(values), len(starts)))
            count += len(seen)
        return UnitTable(values.build(), starts.build(), tuple(ends), count)

    def count_units(self) -> int:
        """How many units there are."""
        return sum(len(seen) for _, seen in self._parts())

    def build_rows(self) -> UnitRowsOnDisk:
        """Where the rows that count lie, units in the order of their first rows: those of ``UnitRowsBuilder``."""
        sort = DiskSort(self._place, rows=self._place, dtype=np.dtype(np.int64))
        for kept, seen in self._parts():
            names = kept["digest"].view("V16").ravel().tolist()
            sort.add(np.array([seen[name].first for name in names], dtype=np.int64), kept["place"])
        made, count = [DiskArrayBuilder(np.int64) for _ in range(3)], 0
        for first, places in sort.chunks():  # a unit has one first row, so it lies in one chunk
            nth = _rank(first)
            units = count - 1 + np.cumsum(nth == 0)
            count = int(units[-1]) + 1
            for builder, values in zip(made, (places, units, nth), strict=True):
                builder.append(values)
        placed, numbers, ranks = (builder.build() for builder in made)
        return UnitRowsOnDisk(placed, numbers, ranks, count)

    def _digest(self, name: str | None) -> bytes | None:
        if name is not None and name not in self._missing:
            return _digest(name, self._key)
        if self._unit.missing == "null":
            return None
        self._alone += 1
        return _digest(str(self._alone), self._key, b"dpilot row")  # a unit that has no other row

    def _parts(self) -> Iterator[tuple[NDArray[Any], dict[bytes, _Seen]]]:
        """The rows of each part that count, and what was seen of its units."""
        for number in range(self._buckets.count):
            seen: dict[bytes, _Seen] = {}
            kept = np.empty(0, dtype=[*self._row.descr, ("order", "<u8")])
            for rows in self._buckets.read(number, _PART):
                kept = _first_of_each(np.concatenate([kept, _order_rows(rows, seen, kept.dtype)]), self._unit)
            yield kept, seen


@dataclass(slots=True)
class _Seen:
    """The first row of a unit, and how many that are finite there were."""

    first: int
    rows: int = 0


def _names(cells: Cells, exact: bool) -> Iterator[str | None]:
    """The text by which each id is compared; None for a missing one."""
    if cells.dtype.kind in "iu":  # as ``_name`` names them, without asking each what it is
        return (str(each) if exact or -WHOLE < each < WHOLE else None for each in cells.tolist())
    if cells.dtype.kind not in "fb":
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


def _order_rows(rows: NDArray[Any], seen: dict[bytes, _Seen], form: np.dtype[Any]) -> NDArray[Any]:
    """The finite rows, each with its place in the secret order of its unit; ``seen`` counts those of each unit."""
    rows = rows[np.lexsort(rows["digest"].T)]  # stable: the rows of a unit stay in order
    first = _firsts(rows["digest"])
    units, finite = np.cumsum(first) - 1, np.isfinite(rows["values"]).all(axis=1)
    names = zip(rows["digest"][first].view("V16").ravel().tolist(), rows["place"][first].tolist(), strict=True)
    found = [seen.setdefault(name, _Seen(place)) for name, place in names]
    before = np.array([each.rows for each in found], dtype=np.int64)
    counts = np.bincount(units, finite, minlength=len(found)).astype(np.int64)
    for each, count in zip(found, counts.tolist(), strict=True):
        each.rows += count
    made = np.empty(int(finite.sum()), dtype=form)
    for name in rows.dtype.names or ():
        made[name] = rows[name][finite]
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
