"""The records of a fit, as its guarantee counts them: units, and the parts that they are split into.

What is released of a unit is bounded because the unit is one record everywhere: in whatever is bought, checked or
scored it is one of its rows, drawn in secret; in training it is the mean of at most ``unit.rows`` of them. A mean of
vectors that are no longer than a bound is no longer than the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from dpilot._arrays import Floats
from dpilot.data.disk import DiskArray, DiskArrayBuilder, blocks_of, map_rows
from dpilot.data.encoder import Encoded
from dpilot.data.sparse import is_usable
from dpilot.data.splits import Split
from dpilot.data.units import UnitRows, UnitRowsBuilder, UnitsOnDisk, cut_units
from dpilot.fit.source import RecordSource, RowReader, Seen, take
from dpilot.privacy.unit import PrivacyUnit

__all__ = ["HELD_OUT", "TRAIN", "Parts", "RecordsByUnit", "describe_unit", "group_ids"]

TRAIN: Final = "train"
HELD_OUT: Final = "held-out"
_ROWS: Final = 1 << 16  # at a time
_SCORED: Final = 1 << 13  # the same, widened


def describe_unit(unit: PrivacyUnit) -> str | None:
    """What a unit means for a fit, in words; None for a record."""
    if unit.is_record:
        return None
    rest = "are left out" if unit.missing == "null" else "count each by itself, and are protected as rows only"
    return (
        f"Each {unit.name} is one unit: as many of its rows as may count, drawn in secret, train the model, as their "
        "mean. The health check, whatever is bought, and the figures read one row of each, drawn in secret: they are "
        f"figures per {unit.name}. Rows without a {unit.name} {rest}."
    )


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Both parts of the records, disjoint, and what read them. Sensitive.

    ``units``: whose each row of ``train`` is, where a unit has several; rows of one unit lie together, and the first of
    them was drawn. ``held_out`` has one row of each unit.
    """

    train: Encoded = field(repr=False)
    held_out: Encoded = field(repr=False)
    reader: RowReader
    units: UnitRows | UnitsOnDisk | None = field(default=None, repr=False)

    @property
    def train_rows(self) -> UnitRows | None:
        """The same with the places of the rows in ``train``, in memory."""
        if self.units is None:
            return None
        units = np.asarray(self.units.units)
        return UnitRows(np.arange(len(units)), units, self.units.count)

    @property
    def train_weights(self) -> Floats | DiskArray:
        """What each row of ``train`` adds of its unit, 1 where a unit is a record; 0 for null rows."""
        target, shares = self.train.target, None if self.units is None else self.units.shares
        if not isinstance(target, DiskArray):
            return np.where(np.isfinite(np.asarray(target)), 1.0 if shares is None else shares, 0.0)
        made = DiskArrayBuilder(np.float64)
        for start in range(0, len(target), _ROWS):
            rows = slice(start, start + _ROWS)
            made.append(np.where(np.isfinite(target[rows]), 1.0 if shares is None else shares[rows], 0.0))
        return made.build()

    def score(self, outputs: Callable[[Any], Floats]) -> Floats | DiskArray:
        """The ``outputs`` of the features of ``held_out``: of those on disk some at a time, on disk."""
        found: Floats | DiskArray = map_rows(outputs, self.held_out.features, most=_SCORED)
        return found

    def drawn_targets(self) -> Iterator[Floats]:
        """The target of one row of each unit of ``train``, some at a time, as a column."""
        target: Any = self.train.target
        yield np.zeros((0, 1))
        if self.units is None:
            yield from (some[:, None] for some in blocks_of(target, _ROWS))
            return
        for place in cut_units(self.units.units):
            yield target[place][np.flatnonzero(np.diff(self.units.units[place], prepend=-1)), None]


@dataclass(frozen=True, slots=True, eq=False)
class RecordsByUnit:
    """The records of a fit as its guarantee counts them. Sensitive.

    ``sample`` holds one record of each unit; ``counted`` all rows that train; both are the whole table, and ``rows`` is
    None, where a unit is a record.
    """

    sample: RecordSource = field(repr=False)
    counted: RecordSource = field(repr=False)
    rows: UnitRows | None = field(default=None, repr=False)

    @classmethod
    def of(cls, source: RecordSource, unit: PrivacyUnit, key: bytes) -> RecordsByUnit:
        """Whose rows are whose, and which of them count: by the ids and a secret key."""
        if unit.is_record:
            return cls(source, source)
        rows = group_ids(source, unit, key)
        return cls(source.select(rows.drawn), source.select(rows.places), rows)

    def first(self, source: RecordSource, rows: int | None) -> RecordsByUnit:
        """The same with at most ``rows`` of each unit's rows; all of them where it is None."""
        if rows is None or self.rows is None:
            return self
        kept = self.rows.first(rows)
        return RecordsByUnit(self.sample, source.select(kept.places), kept)

    def parts(self, reader: RowReader, split: Split, seen: Seen | None = None) -> Parts:
        """Every unit, with all its rows, in one part: rows that count for training, one of each unit held out."""
        records = self.counted.read(reader, seen)
        if self.rows is None:
            places = split.indices(len(records.features))
            return Parts(take(records, places[TRAIN]), take(records, places[HELD_OUT]), reader)
        chosen = split.indices(self.rows.count)
        train, held_out = self.rows.take(chosen[TRAIN]), self.rows.take(chosen[HELD_OUT])
        read = np.sort(self.rows.places)  # the order of ``records``
        trained = take(records, np.searchsorted(read, train.places))
        usable = is_usable(trained.features)  # a null row takes no part in its unit's mean
        return Parts(
            take(trained, np.flatnonzero(usable)),
            take(records, np.searchsorted(read, held_out.drawn)),
            reader,
            train.usable(usable),
        )


def group_ids(source: RecordSource, unit: PrivacyUnit, key: bytes) -> UnitRows:
    """The rows of each unit that count, by the ids of a table and a secret key."""
    builder = UnitRowsBuilder(unit, key, exact=source.is_file, missing=source.schema.missing_values)
    for cells in source.ids():
        builder.add(cells)
    return builder.build()
