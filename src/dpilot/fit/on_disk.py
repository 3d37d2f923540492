"""Records of a fit that are too many for memory: encoded some at a time into files without names, in training order.

What is trained on is what it would be in memory, row for row and in the same order, so the same key gives the same
coefficients, bit for bit. Of a table of n rows memory holds a block of 2^16 rows, some MiB of a sort, and targets and
groups of the records kept apart, which are few.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeGuard

import numpy as np

from dpilot._arrays import Floats, Indices
from dpilot.data.disk import DiskArray, DiskArrayBuilder, DiskSort
from dpilot.data.encoder import Encoded, Encoder
from dpilot.data.sparse import is_usable
from dpilot.data.splits import Split
from dpilot.data.units import UnitRowsOnDisk, UnitsOnDisk, UnitTableBuilder
from dpilot.fit.population import HELD_OUT, TRAIN, Parts, group_ids
from dpilot.fit.source import RecordSource, RowReader, Seen, TableSource, take
from dpilot.keys import KEY_BYTES
from dpilot.privacy.unit import PrivacyUnit

__all__ = ["RecordsOnDisk", "count_units", "is_too_large"]

_VALUES: Final = 1 << 25  # of 4 bytes: a larger table goes to disk
_ID: Final = 32  # values: what the id of a row takes in memory
_NO_KEY: Final = bytes(KEY_BYTES)  # which rows count is not asked for


def is_too_large(source: RecordSource, rows: float | None = None) -> TypeGuard[TableSource]:
    """Whether the records go to disk: tables in files of which memory would hold more than 128 MiB, roughly.

    Hashed texts, whose rows are sparse, and pictures stay in memory. The length of the file decides even where it is
    protected: nothing but time and memory tells one way from the other. Whoever says which way it is asks for a
    declared number of ``rows``.
    """
    schema = source.schema
    if (
        not isinstance(source, TableSource)
        or not source.is_file
        or any(each.type == "text" for each in schema.features)
    ):
        return False
    if any(each.type == "image" for each in schema.features):
        return False
    known = schema.inputs_only()
    width = Encoder(known.with_bounds(dict.fromkeys(known.to_buy, (0.0, 1.0)))).width
    shapes = 9 * sum(column.type == "numeric" for column in known.features)  # of numbers that are widened
    length = source.length() if rows is None else rows
    return length * (width + shapes + _ID * (schema.unit is not None)) > _VALUES


@dataclass(frozen=True, slots=True, eq=False)
class RecordsOnDisk:
    """``RecordsByUnit`` of a table that is too long for memory. Sensitive."""

    source: TableSource = field(repr=False)
    sample: TableSource = field(repr=False)
    rows: UnitRowsOnDisk | None = field(default=None, repr=False)
    most: int | None = None  # rows of a unit, where that was bought

    @classmethod
    def of(cls, source: TableSource, unit: PrivacyUnit, key: bytes) -> RecordsOnDisk:
        """Whose rows are whose, and which of them count: by the ids and a secret key."""
        if unit.is_record:
            return cls(source, source)
        rows = _group(source, unit, key).build_rows()
        sort = DiskSort(source.length(), rows=rows.count, dtype=np.dtype("V0"))
        for places, _, _ in rows.blocks(1):
            sort.add(places, np.empty(len(places), "V0"))
        drawn = DiskArrayBuilder(np.int64)
        for places, _ in sort.chunks():
            drawn.append(places)
        return cls(source, source.select(drawn.build()), rows)

    def first(self, source: RecordSource, rows: int | None) -> RecordsOnDisk:
        """The same with at most ``rows`` of each unit's rows; all of them where it is None."""
        del source
        return replace(self, most=rows)

    def parts(self, reader: RowReader, split: Split, seen: Seen | None = None) -> Parts:
        """Every unit, with all its rows, in one part: rows that count for training, one of each unit held out."""
        if self.rows is None:
            return self._split_records(reader, split, seen)
        source, placed, units = self._place_rows(self.rows, split)
        sorts: dict[str, DiskSort] = {}
        start = 0
        for records in source.pieces(reader):
            rows = placed[start : start + len(records.features)]
            start += len(rows)
            made = _as_rows(records, rows["unit"])
            for name in (TRAIN, HELD_OUT):
                chosen = rows["held_out"] == (name == HELD_OUT)
                sorts.setdefault(name, DiskSort(len(placed), rows=len(placed), dtype=made.dtype))
                sorts[name].add(rows["to"][chosen], made[chosen])
        train, held_out, whose = _PartBuilder(), _PartBuilder(), DiskArrayBuilder(np.int64)
        for _, rows in sorts[TRAIN].chunks():
            usable = is_usable(rows["features"])  # a null row takes no part in its unit's mean
            train.append(_as_records(rows[usable]))
            whose.append(rows["unit"][usable])
        for _, rows in sorts[HELD_OUT].chunks():
            held_out.append(_as_records(rows))
        empty = next(source.select(np.empty(0, dtype=np.int64)).pieces(reader))
        owned = UnitsOnDisk.of(whose.build(), units)
        return Parts(train.build(empty), held_out.build(empty, in_memory=True), reader, owned)

    def _split_records(self, reader: RowReader, split: Split, seen: Seen | None) -> Parts:
        train, held_out, toss, start = _PartBuilder(), _PartBuilder(), split.coins(), 0
        records = None
        for records in self.source.pieces(reader):
            part = toss(len(records.features))
            train.append(take(records, np.flatnonzero(part == TRAIN)))
            held_out.append(take(records, np.flatnonzero(part == HELD_OUT)))
            start += len(part)
            if seen is not None:
                seen(start)
        assert records is not None  # a table of 0 rows gives one empty frame
        empty = take(records, slice(0))
        return Parts(train.build(empty), held_out.build(empty, in_memory=True), reader)

    def _place_rows(self, rows: UnitRowsOnDisk, split: Split) -> tuple[TableSource, DiskArray, int]:
        """The rows that are read, in the table's order; where each of them goes; the number of units that train."""
        placed = np.dtype([("to", "<i8"), ("unit", "<i8"), ("held_out", "?")])
        sort, toss = DiskSort(self.source.length(), rows=len(rows.places), dtype=placed), split.coins()
        ends, units = {TRAIN: 0, HELD_OUT: 0}, 0
        for places, _, nth in rows.blocks(self.most):
            part = toss(int((nth == 0).sum()))
            trains = (part == TRAIN)[np.cumsum(nth == 0) - 1]
            made = np.empty(len(places), placed)
            made["held_out"] = ~trains
            made["unit"] = units - 1 + np.cumsum(trains & (nth == 0))
            units += int((part == TRAIN).sum())
            for name, kept in ((TRAIN, trains), (HELD_OUT, ~trains & (nth == 0))):
                made["to"][kept] = np.arange(kept.sum()) + ends[name]
                ends[name] += int(kept.sum())
            read = trains | (nth == 0)
            sort.add(places[read], made[read])
        where, whither = DiskArrayBuilder(np.int64), DiskArrayBuilder(placed)
        for keys, found in sort.chunks():
            where.append(keys)
            whither.append(found)
        return self.source.select(where.build()), whither.build(), units


def count_units(source: RecordSource, unit: PrivacyUnit) -> int:
    """The number of units of a table: read where the caller has made it public."""
    if is_too_large(source):
        return _group(source, unit, _NO_KEY).count_units()
    return group_ids(source, unit, _NO_KEY).count


def _group(source: RecordSource, unit: PrivacyUnit, key: bytes) -> UnitTableBuilder:
    builder = UnitTableBuilder(unit, key, source.length(), exact=source.is_file, missing=source.schema.missing_values)
    for cells in source.ids():
        builder.add(cells)
    return builder


class _PartBuilder:
    """The records of a part, written down some at a time."""

    def __init__(self) -> None:
        self._builders: dict[str, DiskArrayBuilder] = {}

    def append(self, records: Encoded) -> None:
        named: dict[str, Any] = {"features": records.features, "target": records.target, "group": records.group}
        for name, rows in named.items():
            if rows is not None:
                if name not in self._builders:
                    self._builders[name] = DiskArrayBuilder(rows.dtype, rows.shape[1:])
                self._builders[name].append(rows)

    def build(self, empty: Encoded, *, in_memory: bool = False) -> Encoded:
        """All of it; ``in_memory`` everything but the features."""
        self.append(empty)
        found: dict[str, Any] = {name: builder.build() for name, builder in self._builders.items()}
        small = {name: rows[:] if in_memory else rows for name, rows in found.items() if name != "features"}
        return Encoded(found["features"], small.get("target"), small.get("group"))


def _as_rows(records: Encoded, units: Indices) -> Any:
    """Records as rows of one type, which can be sorted."""
    features: Any = records.features
    group = records.group
    groups = 0 if group is None else group.shape[1]
    form = [
        ("features", features.dtype, features.shape[1:]), ("target", "<f8"), ("group", "<f8", (groups,)),
        ("unit", "<i8"),
    ]  # fmt: skip
    rows = np.empty(len(features), np.dtype(form))
    rows["features"], rows["target"], rows["unit"] = features, records.target, units
    if group is not None:
        rows["group"] = group
    return rows


def _as_records(rows: Any) -> Encoded:
    group: Floats | None = rows["group"] if rows["group"].shape[1] else None
    return Encoded(rows["features"], rows["target"], group)
