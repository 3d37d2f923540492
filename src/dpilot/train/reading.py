"""From the numbers of a batch to chunks of records, ready for the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Subset, TensorDataset, default_collate

from dpilot.engine import batch as batches
from dpilot.errors import InvalidInput
from dpilot.sampling import check_source
from dpilot.train.form import brought, quietly
from dpilot.train.nulls import Chunk

Collate = Callable[[list[Any]], Any]
_TRIES = 100
_EXACT = 2**53  # whole numbers up to this are floats as well: torch reads them alike among either


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads records by number and collates them in chunks of the public ``form``, on one device.

    Guarantee:
        Only the records asked for are read. A record that cannot be read or collated alone, or has another form
        alone, is left out in silence: it is the null record. No record changes what another one is read as: where a
        chunk has not the form, each record is collated by itself.
    """

    dataset: Any
    collate: Collate | None
    form: Any = None
    device: torch.device | None = None

    def chunks(self, pieces: Iterable[NDArray[np.int64]]) -> Iterator[Chunk]:
        """The records of each piece as one chunk; record by record where they do not make one."""
        for indices in pieces:
            yield from self._as_tensors(indices) or self._collated(self._fetched(indices.tolist()))

    def one(self) -> Any:
        """The first record that can be read, as a chunk: only its form is ever used."""
        for chunk in self.chunks(np.array([index]) for index in range(min(len(self.dataset), _TRIES))):
            return chunk.whole
        raise InvalidInput("no record could be read and collated: expected dataset[i] and collate_fn to work.")

    def _as_tensors(self, indices: NDArray[np.int64]) -> list[Chunk]:
        """The quick way for records that lie in tensors, and so have one form."""
        if type(self.dataset) is not TensorDataset or self.collate is not None:
            return []
        whole = quietly(lambda: self._ready(self.dataset[torch.from_numpy(indices)], indices.size))
        return [] if whole is None else [Chunk(whole, partial(slices, whole, indices.size))]

    def _fetched(self, indices: list[int]) -> list[Any]:
        records = quietly(lambda: _fetch(self.dataset, indices))
        if records is not None:
            return records
        alone = (quietly(partial(_fetch, self.dataset, [i])) for i in indices)
        return [record for records in alone if records is not None for record in records]

    def _collated(self, records: list[Any]) -> Iterator[Chunk]:
        whole = self._chunk(records) if records else None
        if whole is not None:
            yield Chunk(whole, partial(self._alone, records))
        elif len(records) > 1:
            alone = self._alone(records)
            fitting = [record for record, single in zip(records, alone, strict=True) if single is not None]
            if len(fitting) < len(records):
                yield from self._collated(fitting)
            else:
                yield from (Chunk(single) for single in alone)

    def _alone(self, records: list[Any]) -> list[Any]:
        return [self._chunk([record]) for record in records]

    def _chunk(self, records: list[Any]) -> Any:
        if self.collate is None and not alike(records):
            return None
        return quietly(lambda: self._ready((self.collate or default_collate)(list(records)), len(records)))

    def _ready(self, chunk: Any, count: int) -> Any:
        fitting = chunk if self.form is None else brought(chunk, self.form, joint=count > 1)
        return fitting if self.device is None else on(self.device, fitting)


def _fetch(dataset: Any, indices: list[int]) -> list[Any]:
    many = getattr(dataset, "__getitems__", None)
    records = list(many(indices)) if many is not None else [dataset[i] for i in indices]
    if len(records) != len(indices):
        raise ValueError(f"{len(records)} records for {len(indices)} numbers")
    return records


def alike(records: list[Any]) -> bool:
    """Whether torch's collating would read every record as it reads the first one.

    It goes by the first: among numbers a tensor of one entry would count as a number, which it is not where it is
    first, or alone. What a record counts for must not depend on who is before it.

    Example:
        >>> alike([(1.0, 2), (0.5, 3.0)]), alike([(1.0, 2), (torch.tensor([0.5]), 3)])
        (True, False)
    """
    return bool(quietly(lambda: len({_kind(record) for record in records}) == 1))


def _kind(part: Any) -> Any:
    """What decides how torch reads a part, alone or behind others: its class, and what is in it."""
    if isinstance(part, Tensor | np.ndarray):
        return type(part), part.ndim
    if isinstance(part, Mapping):
        return type(part), frozenset((key, _kind(value)) for key, value in part.items())
    if isinstance(part, tuple | list):
        plain = type(part) in (tuple, list)
        return "sequence" if plain else type(part), tuple(_kind(value) for value in part)
    exact = type(part) in (bool, float) or (type(part) is int and abs(part) <= _EXACT)
    return "number" if exact else type(part)


def slices(chunk: Any, n: int) -> list[Any]:
    """The records of a chunk of ``n``, each a chunk: only where collating joins records and changes none."""
    return [batches.rows(chunk, n, i, i + 1) for i in range(n)]


def on(device: torch.device, chunk: Any) -> Any:
    """The chunk's tensors on a device."""
    return batches.rebuild(chunk, lambda t: t.to(device))


def check_dataset(dataset: Any) -> None:
    """Refuse what cannot be sampled record by record, and what has no record; nothing is read."""
    check_source(dataset)
    if len(dataset) == 0:
        raise InvalidInput("the data set is empty: expected at least one record. The promise is about such data sets.")


def known_form(dataset: Any, collate: Collate | None) -> Any:
    """A chunk of one record of zeros in the data set's form, if its types tell without a record being read."""
    if collate is not None:
        return None
    if type(dataset) is Subset:
        return known_form(dataset.dataset, None)
    if type(dataset) is TensorDataset:
        return tuple(tensor.new_zeros((1, *tensor.shape[1:])) for tensor in dataset.tensors)
    return None
