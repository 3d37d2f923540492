"""From the numbers of a batch to chunks of records, ready for the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Subset, TensorDataset, default_collate
from torch.utils.data._utils import collate as collating

from dpilot.data.cells import plain
from dpilot.data.reading import numbers
from dpilot.engine import batch as batches
from dpilot.engine.state import preserve_state
from dpilot.sampling import check_source
from dpilot.train.collating import grouped, joined, rows
from dpilot.train.form import Differs, brought, quietly
from dpilot.train.nulls import Chunk

Collate = Callable[[list[Any]], Any]
Indices = NDArray[np.int64]
_TRIES: Final = 100


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads records by number and collates them in chunks of the public ``form`` (of one record), on one device.

    Guarantee:
        Only the records asked for are read, each by itself: ``dataset[i]``, then ``collate([record])``. So neither a
        ``__getitems__`` nor a collate function of the caller's ever sees two records, and none can be standardised by,
        or padded to, another. A record that cannot be read or collated, or has another form, is left out in silence:
        it is the null record.

    Edge cases:
        A TensorDataset, and a Subset of one, is indexed for many records at once; records that torch collates, and that
        are of equal types and shapes, are collated together: torch stacks them, which mixes nothing.
    """

    dataset: Any
    collate: Collate | None
    form: Any = None
    device: torch.device | None = None

    def chunks(self, pieces: Iterable[Indices]) -> Iterator[Chunk]:
        """The records of each piece, in one chunk where they are alike."""
        for whole, count in self.counted(pieces):
            ready = whole if self.device is None else on(self.device, whole)
            yield Chunk(ready, partial(slices, ready, count))

    def counted(self, pieces: Iterable[Indices]) -> Iterator[tuple[Any, int]]:
        """The same where they were read, and how many records each chunk holds."""
        for indices in pieces:
            if indices.size:
                yield from self._as_tensors(indices) or self._one_by_one(indices)

    def one(self) -> Any:
        """The first record that can be read, as a chunk: only its form is ever used. None where there is none."""
        for chunk in self.chunks(np.array([index]) for index in range(min(len(self.dataset), _TRIES))):
            return chunk.whole
        return None

    def _as_tensors(self, indices: Indices) -> list[tuple[Any, int]] | None:
        """The quick way for records that lie in tensors, and so have one form; None where that is not so."""
        tensors = None if self.collate is not None else _tensors(self.dataset, indices)
        return None if tensors is None else quietly(lambda: self._fitting(tensors, indices.size))

    def _one_by_one(self, indices: Indices) -> Iterator[tuple[Any, int]]:
        records = (quietly(partial(_boxed, self.dataset, i)) for i in indices.tolist())
        found = [box[0] for box in records if box is not None]
        collate = default_collate if self.collate is None and _is_extended() else self.collate
        if collate is None:
            yield from self._stacked([_known(record) for record in found])
        else:
            yield from joined(self._alone(collate, found), most=indices.size)

    def _stacked(self, records: list[Any]) -> Iterator[tuple[Any, int]]:
        """Records by torch's collating: those of equal types and shapes together, others apart."""
        for group in grouped(records, _kind):
            together = quietly(lambda group=group: self._fitting(default_collate(group), len(group)))  # type: ignore[misc]
            if together is not None:
                yield from together
            elif len(group) > 1:
                yield from joined(self._alone(default_collate, group), most=len(group))

    def _alone(self, collate: Collate, records: list[Any]) -> Iterator[Any]:
        for record in records:
            with preserve_state(collate):  # what it remembers of one record, another must not meet
                found = quietly(lambda record=record: self._fitting(collate([record]), 1))  # type: ignore[misc]
            yield from (whole for whole, _ in found or ())

    def _fitting(self, chunk: Any, count: int) -> list[tuple[Any, int]]:
        """The records of a chunk that have the form, as one chunk; none if none has."""
        if self.form is None:
            return [(chunk, count)]
        whole, wrong = brought(chunk, self.form)
        _check_rows(whole, self.form, count)
        if wrong is None or not wrong.any():
            return [(whole, count)]
        kept = (~wrong).nonzero().flatten().tolist()
        taken = [rows(whole, count, place, place + 1) for place in kept]
        return list(joined(taken, most=count))


def _boxed(dataset: Any, index: int) -> list[Any]:
    return [_owned(dataset[index])]


def _owned(part: Any) -> Any:
    """The same in memory of its own: a data set may write the next record where this one lies."""
    if isinstance(part, Tensor):
        return part.clone()
    if isinstance(part, np.ndarray):
        return part.copy()
    if type(part) is dict:
        return {key: _owned(value) for key, value in part.items()}
    return type(part)(map(_owned, part)) if type(part) in (tuple, list) else part


def _is_extended() -> bool:
    """Whether torch's collating calls functions that are not torch's, which must not see two records."""
    return any(function.__module__ != collating.__name__ for function in collating.default_collate_fn_map.values())


def _check_rows(whole: Any, form: Any, count: int) -> None:
    """What holds one record in the form has a row for each here."""
    for part, like in zip(batches.tensors(whole), batches.tensors(form), strict=True):
        if like.dim() and like.shape[0] == 1 and part.shape[0] != count:
            raise Differs


def _tensors(dataset: Any, indices: Indices) -> Any:
    """The rows of a TensorDataset, or of a Subset of one; None of any other data set."""
    if type(dataset) is Subset:
        places = quietly(lambda: np.asarray(dataset.indices, dtype=np.int64)[indices])
        return None if places is None else _tensors(dataset.dataset, places)
    return quietly(lambda: dataset[torch.from_numpy(indices)]) if type(dataset) is TensorDataset else None


def _known(part: Any) -> Any:
    """The same with arrays that torch cannot hold (of objects, texts, long floats) as the numbers they hold.

    Edge cases:
        What is no number is not a number, in its own record. Whatever raises stays as it is: torch will not collate it.
    """
    if isinstance(part, np.ndarray | np.generic) and (part.dtype.kind not in "fiubc" or part.dtype.char in "gG"):
        read = quietly(lambda: numbers(plain(np.asarray(part).ravel()), ()).reshape(part.shape))
        return part if read is None else np.where(np.isfinite(read), read, np.nan)[()]
    if type(part) is dict:
        return {key: _known(value) for key, value in part.items()}
    return type(part)(map(_known, part)) if type(part) in (tuple, list) else part


def _kind(part: Any) -> Any:
    """What decides what torch makes of a part: its class, its type and shape, and what is in it."""
    if isinstance(part, Tensor) and type(part) is not Tensor:
        return object()  # its class may see what it is stacked with: collated alone
    if isinstance(part, Tensor | np.ndarray):
        return type(part), tuple(part.shape), part.dtype, getattr(part, "device", None)
    if isinstance(part, Mapping):
        return type(part), tuple((key, _kind(value)) for key, value in part.items())
    if isinstance(part, tuple | list):
        kind = "sequence" if type(part) in (tuple, list) else type(part)
        return kind, tuple(_kind(value) for value in part)
    return type(part)


def slices(chunk: Any, count: int) -> list[Any]:
    """The records of a chunk of ``count``, each a chunk."""
    return [rows(chunk, count, i, i + 1) for i in range(count)]


def on(device: torch.device, chunk: Any) -> Any:
    """The chunk's tensors on a device."""
    return batches.rebuild(chunk, lambda t: t.to(device))


def check_dataset(dataset: Any) -> None:
    """Refuse what cannot be sampled record by record; nothing is read, and no records are as good as any."""
    check_source(dataset)


def known_form(dataset: Any, collate: Collate | None) -> Any:
    """A chunk of one record of zeros in the data set's form, if its types tell without a record being read."""
    if collate is not None:
        return None
    if type(dataset) is Subset:
        return known_form(dataset.dataset, None)
    if type(dataset) is TensorDataset:
        return tuple(tensor.new_zeros((1, *tensor.shape[1:])) for tensor in dataset.tensors)
    return None
