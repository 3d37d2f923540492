"""Reads units (persons with all their rows) as records: which rows are a unit's, and how they are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from dpilot._arrays import Indices
from dpilot._quiet import try_quietly
from dpilot.data.parquet import ON_DISK
from dpilot.data.units import UnitRows, group_rows
from dpilot.errors import InvalidInput
from dpilot.keys import KEY_BYTES, Chain
from dpilot.privacy.unit import PrivacyUnit
from dpilot.train.batches.reader import (
    TRIES,
    Collate,
    Reader,
    RecordChunk,
    base_of,
    concatenate_alike,
    concatenate_records,
    record_chunks,
)
from dpilot.train.batches.unit_chunk import pad_rows
from dpilot.train.randomness import Seed


class RowsByUnit(Protocol):
    """Which rows are whose: ``UnitRows``, or the same on disk."""

    @property
    def count(self) -> int: ...

    def find(self, numbers: Indices) -> tuple[Indices, Indices]: ...


@dataclass(frozen=True, slots=True, eq=False)
class UnitsById:
    """A data set of rows as one of units: ``rows`` says which rows are whose."""

    dataset: Any
    rows: RowsByUnit

    def __len__(self) -> int:
        return self.rows.count

    def rows_of(self, number: int) -> tuple[Any, Indices]:
        """Where the rows of a unit lie: a data set, and their places in it."""
        return self.dataset, self.places(np.array([number]))[0]

    def places(self, numbers: Indices) -> tuple[Indices, Indices]:
        """The places of the rows of some units, unit by unit, and how many rows each has."""
        return self.rows.find(numbers)


@dataclass(frozen=True, slots=True, eq=False)
class UnitsInLists:
    """A data set whose items are lists, each of the rows of one unit, of which ``unit.rows`` count."""

    dataset: Any
    unit: PrivacyUnit
    key: bytes

    def __len__(self) -> int:
        return len(self.dataset)

    def rows_of(self, number: int) -> tuple[Any, Indices]:
        """The list of a unit, and the places in it of the rows that count, by the secret key and its number."""
        rows = self.dataset[number]
        if not isinstance(rows, list):
            raise TypeError("not a list of rows")  # the null record: it never leaves the reader
        return rows, group_rows(np.full(len(rows), number), self.unit, key=self.key).places


Units = UnitsById | UnitsInLists


def rows_of(dataset: Any) -> Any:
    """The caller's own data set."""
    return dataset.dataset if isinstance(dataset, Units) else dataset


def group_units(dataset: Any, ids: Any, unit: PrivacyUnit, key: bytes) -> Units:
    """The data set as one of units: by ``ids``, one for each row, or where there are none by its own lists.

    ``key`` is the ``unit_key`` of a secret of the run: which rows of a unit count follows from it.
    """
    if ids is None:
        return UnitsInLists(dataset, unit, key)
    return UnitsById(dataset, _group(ids, unit, key))


def rows_by_id(ids: Any, unit: PrivacyUnit, key: bytes) -> UnitRows:
    """Which rows are one unit's, and which of them count, by a secret of the run."""
    return _group(ids, unit, unit_key(key))


def _group(ids: Any, unit: PrivacyUnit, key: bytes) -> UnitRows:
    return group_rows(ids.detach().cpu().numpy() if isinstance(ids, Tensor) else ids, unit, key=key)


def unit_key(key: bytes) -> bytes:
    """The key by which rows of units are chosen, of a secret of the run that has other uses too."""
    return Chain(key).generator("units").bytes(KEY_BYTES)


def check_ids(dataset: Any, ids: Any, unit: PrivacyUnit) -> None:
    """Refuse ids that are not one for each row, and rows in tensors without ids; no id is looked at."""
    if unit.is_record:
        return
    if ids is None:
        if type(base_of(dataset)) in (TensorDataset, *ON_DISK):
            raise InvalidInput(
                f"the plan's unit is {unit.name!r}, and units are missing: expected units=, one id for each row of the "
                "data set, or a data set whose items are lists of the rows of one unit."
            )
    elif not hasattr(ids, "__len__") or len(ids) != len(dataset) or getattr(ids, "ndim", 1) != 1:
        raise InvalidInput(  # how many rows there are is protected
            f"units are a {type(ids).__name__} that is not flat, or not as long as the data set: expected one id for "
            "each row of it, in its order."
        )
    elif isinstance(ids, Tensor) and ids.is_floating_point() and ids.dtype != torch.float64:
        raise InvalidInput(  # torch.cat makes these of whole numbers for the sake of one
            f"units are a tensor of {ids.dtype}, in which large whole numbers are one: expected int64, or texts. One "
            "id that is missing makes such a tensor of all."
        )


def first_row(dataset: Any, ids: Any, unit: PrivacyUnit, collate: Collate | None) -> Any:
    """The first row that can be read, as a chunk: only its form is ever used. None where there is none.

    Without ids the first item that can be read has to be a list: its form counts as public, like a record's.
    """
    if unit.is_record or ids is not None:
        return Reader(dataset, collate).one()
    with Reader(dataset, collate).draws():
        read = (try_quietly(lambda number=number: [dataset[number]]) for number in range(min(len(dataset), TRIES)))  # type: ignore[misc]
        items = (box[0] for box in read if box is not None)
        first: Any = next(items, [])
        if not isinstance(first, list):
            raise InvalidInput(
                f"the plan's unit is {unit.name!r}, and the first item of the data set is a {type(first).__name__}: "
                "expected a list, of the rows of one unit, or units=, one id for each item."
            )
        found = (try_quietly(Reader(item, collate).one) for item in chain([first], items) if isinstance(item, list))
        return next((form for form in found if form is not None), None)


@dataclass(frozen=True, slots=True, eq=False)
class UnitReader:
    """Reads units by number, in chunks (real, rows) of at most ``cap`` rows a unit; ``rows`` reads one row.

    Guarantee:
        A row is read by itself, as by ``Reader``. What a unit is in a chunk follows from its own rows alone: those that
        can be read, have the form, and are of the shape of the first of them. Where there is none, the unit is the
        null record. No row of a unit is read twice in a step.
    """

    units: Units
    rows: Reader
    cap: int
    device: torch.device | None = None

    def __len__(self) -> int:
        return len(self.units)

    def chunks(self, pieces: Iterable[Indices]) -> Iterator[RecordChunk]:
        """The units of each piece, in one chunk where they are alike."""
        return record_chunks(self.counted_chunks(pieces), self.device)

    def counted_chunks(self, pieces: Iterable[Indices]) -> Iterator[tuple[Any, int]]:
        """The same where they were read, and how many units each chunk holds."""
        for numbers in pieces:
            if numbers.size:
                yield from self._as_tensors(numbers) or self._one_by_one(numbers)

    def _as_tensors(self, numbers: Indices) -> list[tuple[Any, int]] | None:
        """The quick way for rows that lie in tensors; None where one of them is to be left out."""
        if not isinstance(self.units, UnitsById):
            return None
        places, sizes = self.units.places(numbers)
        return self._whole(self.rows.as_tensors(places), sizes[sizes > 0])  # a unit of no rows is the null record

    def _one_by_one(self, numbers: Indices) -> list[tuple[Any, int]]:
        with self.rows.draws() as seed:
            read = [(number, try_quietly(partial(self._read, number, seed))) for number in numbers.tolist()]
            units = [(partial(seed, number), rows) for number, rows in read if rows]
            together = None
            if self.rows.stacks:  # a function of the caller's would be called, and might draw, twice
                found = self.rows.collate_records([row for _, rows in units for row in rows], seed)
                together = self._whole(found, np.array([len(rows) for _, rows in units], dtype=np.int64))
            alone = (try_quietly(partial(self._alone, rows, own)) for own, rows in units)
            return together or list(concatenate_records((one for one in alone if one is not None), most=len(units)))

    def _read(self, number: int, seed: Seed) -> list[tuple[int, Any]]:
        seed(number)
        dataset, places = self.units.rows_of(number)
        return replace(self.rows, dataset=dataset).read(places, partial(seed, number))

    def _whole(self, found: list[tuple[Any, int]] | None, sizes: Indices) -> list[tuple[Any, int]] | None:
        """Units whose rows are all there, and alike; None where that is not so."""
        if not found or len(found) > 1 or not sizes.size or found[0][1] != sizes.sum():
            return None
        return [(pad_rows(found[0][0], self.rows.form, sizes, self.cap), len(sizes))]

    def _alone(self, rows: list[tuple[int, Any]], seed: Seed) -> Any:
        """One unit by itself: its rows that are like the first of them; None where none has the form."""
        whole, count = concatenate_alike(self.rows.collate_records(rows, seed))
        return pad_rows(whole, self.rows.form, np.array([count]), self.cap) if count else None
