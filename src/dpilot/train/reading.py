"""From the numbers of a batch to chunks of records, ready for the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Subset, TensorDataset, default_collate

from dpilot.engine import batch as batches
from dpilot.errors import InvalidInput
from dpilot.sampling import check_source
from dpilot.train.nulls import OUT_OF_MEMORY

Collate = Callable[[list[Any]], Any]
_TRIES = 100


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads records by number and collates them in chunks, on one device."""

    dataset: Any
    collate: Collate | None
    device: torch.device

    def chunks(self, pieces: Iterable[NDArray[np.int64]]) -> Iterator[Any]:
        """Collated chunks of the records in ``pieces``."""
        return (on(self.device, chunk) for chunk in read(self.dataset, self.collate, pieces))

    def one(self) -> Any:
        """The first record that can be read, as a chunk: only its form is ever used."""
        for chunk in self.chunks(np.array([index]) for index in range(min(len(self.dataset), _TRIES))):
            return chunk
        raise InvalidInput("no record could be read and collated: expected dataset[i] and collate_fn to work.")


def read(dataset: Any, collate: Collate | None, pieces: Iterable[NDArray[np.int64]]) -> Iterator[Any]:
    """One collated chunk for each piece; record by record where a piece cannot be read as a whole.

    Guarantee:
        Only the records asked for are read. A record that cannot be read or collated, even alone, is left out in
        silence: it is the null record.
    """
    for indices in pieces:
        whole = _quietly(dataset, collate, indices)
        if whole is not None:
            yield whole
        elif indices.size > 1:
            alone = (_quietly(dataset, collate, indices[i : i + 1]) for i in range(indices.size))
            yield from (chunk for chunk in alone if chunk is not None)


def _quietly(dataset: Any, collate: Collate | None, indices: NDArray[np.int64]) -> Any:
    try:
        if type(dataset) is TensorDataset and collate is None:
            return dataset[torch.from_numpy(indices)]
        return (collate or default_collate)(_fetch(dataset, indices.tolist()))
    except OUT_OF_MEMORY:
        raise
    except Exception:
        return None


def _fetch(dataset: Any, indices: Sequence[int]) -> list[Any]:
    many = getattr(dataset, "__getitems__", None)
    return list(many(indices)) if many is not None else [dataset[i] for i in indices]


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
