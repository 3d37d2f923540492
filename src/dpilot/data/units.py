"""Which rows of a table belong to which unit (a person, a device), and which of them count.

>>> from dpilot.privacy.unit import PrivacyUnit
>>> rows = group_rows(["ann", "bob", None, "ann", "ann"], PrivacyUnit("patient_id", rows=2), key=bytes(32))
>>> rows.count, np.bincount(rows.units).tolist(), rows.shares.tolist()
(2, [2, 1], [0.5, 0.5, 1.0])
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpilot._arrays import Floats, Indices
from dpilot.data.cells import Cells, objects, plain
from dpilot.data.values import key as value_key
from dpilot.privacy.unit import PrivacyUnit

__all__ = ["UnitRows", "UnitRowsBuilder", "group_rows"]

_NO_ID: Final = -1
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
        """The place of one row of each unit, drawn uniformly: a table in which a unit is one record."""
        return self.places[np.flatnonzero(np.diff(self.units, prepend=-1))]

    def usable(self, mask: NDArray[np.bool_]) -> UnitRows:
        """The same without rows that are null: they take no part in their unit's mean."""
        return UnitRows(self.places[mask], self.units[mask], self.count)

    def take(self, chosen: Indices) -> UnitRows:
        """The rows of the units ``chosen``, ascending, numbered anew in their order."""
        number = np.full(self.count, _NO_ID, dtype=np.int64)
        number[chosen] = np.arange(len(chosen))
        kept = number[self.units] != _NO_ID
        return UnitRows(self.places[kept], number[self.units[kept]], len(chosen))


def group_rows(ids: Any, unit: PrivacyUnit, *, key: bytes) -> UnitRows:
    """The rows of each unit, at most ``unit.rows`` of them; ``ids`` has one id for each row, ``key`` is secret.

    Edge cases:
        1, 1.0, "1" and True are one id, as of every category; a whole number from 2^53 on is none, unless it is text
        of a file (``UnitRowsBuilder``), as a float would not tell it from the next
        a missing id    its row counts for nothing; with ``unit.missing == "row"`` it is a unit of its own
    """
    builder = UnitRowsBuilder(unit, key)
    builder.add(plain(ids) if hasattr(ids, "dtype") or hasattr(ids, "type") else objects(ids))
    return builder.build()


class UnitRowsBuilder:
    """Reads ids some at a time; ``exact`` where no container can have turned whole numbers into floats: in a file."""

    def __init__(self, unit: PrivacyUnit, key: bytes, *, exact: bool = False) -> None:
        self._unit, self._key, self._exact = unit, key, exact
        self._numbers: dict[str, int] = {}  # of each id, in the order of first rows
        self._seeds: list[bytes] = []
        self._codes: list[Indices] = []

    def add(self, cells: Cells) -> None:
        """The ids of the next rows."""
        if cells.dtype.kind in "fiub":
            values, inverse = np.unique(cells, return_inverse=True)
            each = [self._name(value) for value in values.tolist()]
            names: Iterable[str | None] = (each[place] for place in inverse.reshape(-1).tolist())
        else:
            names = map(self._name, cells.tolist())
        self._codes.append(np.fromiter((self._number(name) for name in names), np.int64, len(cells)))

    def build(self) -> UnitRows:
        """The rows that count."""
        codes = np.concatenate(self._codes) if self._codes else np.empty(0, dtype=np.int64)
        seeds = np.frombuffer(b"".join(self._seeds), dtype="<u8")
        kept = np.flatnonzero(codes != _NO_ID)
        order = np.argsort(codes[kept], kind="stable")
        places, units = kept[order], codes[kept][order]
        starts = np.flatnonzero(np.diff(units, prepend=-1))
        nth = np.arange(len(units)) - np.repeat(starts, np.diff(starts, append=len(units)))
        order = np.lexsort((_mix(seeds[units] + nth.astype(np.uint64) * _GOLDEN), units))  # a unit's rows stay together
        most = self._unit.rows or 1
        kept_rows = nth < most  # units ascend in both orders, so the nth of the new order stands at the same place
        return UnitRows(places[order][kept_rows], units[kept_rows], len(seeds))

    def _number(self, name: str | None) -> int:
        if name is None:
            return self._new_unit("row") if self._unit.missing == "row" else _NO_ID
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = self._new_unit(name)
        return number

    def _new_unit(self, name: str) -> int:
        digest = blake2b(name.encode("utf-8", "surrogatepass"), key=self._key, digest_size=8, person=b"dpilot unit")
        self._seeds.append(digest.digest())
        return len(self._seeds) - 1

    def _name(self, cell: Any) -> str | None:
        """The text by which ids are compared; None for a missing one."""
        name = value_key(cell)
        if name is None and self._exact and type(cell) in (str, int):
            name = str(cell).strip()
        return None if name in (None, "nan", "") else name


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64: a permutation of 64-bit words whose output looks uniform for counted inputs."""
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(values ^ (values >> np.uint64(31)))
