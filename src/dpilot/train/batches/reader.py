"""From the numbers of a batch to chunks of records, ready for the engine.

Also what is public of a record, its form, and how a record is brought to it or found to have another.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Subset, TensorDataset, default_collate
from torch.utils.data._utils import collate as torch_collate

from dpilot._quiet import try_quietly
from dpilot.data.cells import plain
from dpilot.data.parquet import ON_DISK
from dpilot.data.reading import numbers
from dpilot.data.values import number
from dpilot.engine import batch as batches
from dpilot.engine.state import preserve_state
from dpilot.errors import InvalidInput
from dpilot.train.randomness import Seed, record_randomness

Collate = Callable[[list[Any]], Any]
Indices = NDArray[np.int64]
TRIES: Final = 100


@dataclass(frozen=True, slots=True)
class RecordChunk:
    """Records collated together, how each is had alone (a chunk of one, or None for the null record), and how many."""

    whole: Any
    alone: Callable[[], list[Any]]
    count: int


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads records by number and collates them in chunks of the public ``form`` (of one record), on one device.

    Guarantee:
        Only the records asked for are read, each by itself: ``dataset[i]``, then ``collate([record])``. So neither a
        ``__getitems__`` nor a collate function of the caller's ever sees two records, and none can be standardised by,
        or padded to, another. A record that cannot be read or collated, or has another form, is left out in silence:
        it is the null record.

    Edge cases:
        A TensorDataset, a data set on disk and a Subset of one are indexed for many records at once; records that torch
        collates, and that are of equal types and shapes, are collated together: torch stacks them, which mixes nothing.
    """

    dataset: Any
    collate: Collate | None
    form: Any = None
    device: torch.device | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def chunks(self, pieces: Iterable[Indices]) -> Iterator[RecordChunk]:
        """The records of each piece, in one chunk where they are alike."""
        return record_chunks(self.counted_chunks(pieces), self.device)

    def counted_chunks(self, pieces: Iterable[Indices]) -> Iterator[tuple[Any, int]]:
        """The same where they were read, and how many records each chunk holds."""
        for indices in pieces:
            if indices.size:
                yield from self.as_tensors(indices) or self._read_and_collate(indices)

    def one(self) -> Any:
        """The first record that can be read, as a chunk: only its form is ever used. None where there is none."""
        for chunk in self.chunks(np.array([index]) for index in range(min(len(self.dataset), TRIES))):
            return chunk.whole
        return None

    def as_tensors(self, indices: Indices) -> list[tuple[Any, int]] | None:
        """The quick way for records that lie in tensors, and so have one form; None where that is not so."""
        tensors = None if self.collate is not None else _tensors(self.dataset, indices)
        return None if tensors is None else try_quietly(lambda: self._conforming_chunk(tensors, indices.size))

    def draws(self) -> AbstractContextManager[Seed]:
        """Random numbers of its own for each record that is read or collated: a function that seeds them."""
        return record_randomness(self.dataset, self.collate)

    def _read_and_collate(self, indices: Indices) -> list[tuple[Any, int]]:
        with self.draws() as seed:
            return self.collate_records(self.read(indices, seed), seed)

    def read(self, indices: Indices, seed: Seed) -> list[tuple[int, Any]]:
        """The records that can be read, as the data set has them, with their numbers."""
        found = []
        for index in indices.tolist():
            seed(index)
            box = try_quietly(partial(_read_boxed, self.dataset, index))
            found += [] if box is None else [(index, box[0])]
        return found

    def collate_records(self, found: list[tuple[int, Any]], seed: Seed) -> list[tuple[Any, int]]:
        """The records that have the form, in chunks of those that are alike; the first one's chunk is the first."""
        if self.stacks:
            return list(self._stack([_as_numbers(record) for _, record in found], seed))
        alone = self._alone(self.collate or default_collate, found, seed)
        return list(concatenate_records(alone, most=len(found)))

    @property
    def stacks(self) -> bool:
        """Whether records are collated together: by torch alone."""
        return self.collate is None and not _is_extended()

    def _stack(self, records: list[Any], seed: Seed) -> Iterator[tuple[Any, int]]:
        """Records by torch's collating: those of equal types and shapes together, others apart."""
        for group in group_alike(records, _kind):
            together = try_quietly(lambda group=group: self._conforming_chunk(default_collate(group), len(group)))  # type: ignore[misc]
            if together is not None:
                yield from together
            elif len(group) > 1:
                numbered = [(0, record) for record in group]  # torch's own collating draws nothing
                yield from concatenate_records(self._alone(default_collate, numbered, seed), most=len(group))

    def _alone(self, collate: Collate, records: list[tuple[int, Any]], seed: Seed) -> Iterator[Any]:
        for index, record in records:
            seed(-1 - index)  # other ones than those it was read with
            with preserve_state(collate):  # what it remembers of one record, another must not meet
                found = try_quietly(lambda record=record: self._conforming_chunk(collate([record]), 1))  # type: ignore[misc]
            yield from (whole for whole, _ in found or ())

    def _conforming_chunk(self, chunk: Any, count: int) -> list[tuple[Any, int]]:
        """The records of a chunk that have the form, as one chunk; none if none has."""
        if self.form is None:
            return [(chunk, count)]
        whole, wrong = conform_to_spec(chunk, self.form)
        _check_rows(whole, self.form, count)
        if wrong is None or not wrong.any():
            return [(whole, count)]
        kept = (~wrong).nonzero().flatten().tolist()
        taken = [slice_records(whole, count, place, place + 1) for place in kept]
        return list(concatenate_records(taken, most=count))


def record_chunks(counted: Iterable[tuple[Any, int]], device: torch.device | None = None) -> Iterator[RecordChunk]:
    """Chunks with their numbers of records as what a step takes, on a device."""
    for whole, count in counted:
        ready = whole if device is None else move_to(device, whole)
        yield RecordChunk(ready, partial(split_records, ready, count), count)


def _read_boxed(dataset: Any, index: int) -> list[Any]:
    return [_copy(dataset[index])]


def _copy(part: Any) -> Any:
    """The same in memory of its own: a data set may write the next record where this one lies."""
    if isinstance(part, Tensor):
        return part.clone()
    if isinstance(part, np.ndarray):
        return part.copy()
    if type(part) is dict:
        return {key: _copy(value) for key, value in part.items()}
    return type(part)(map(_copy, part)) if type(part) in (tuple, list) else part


def _is_extended() -> bool:
    """Whether torch's collating calls functions that are not torch's, which must not see two records."""
    functions = torch_collate.default_collate_fn_map.values()
    return any(function.__module__ != torch_collate.__name__ for function in functions)


def _check_rows(whole: Any, form: Any, count: int) -> None:
    """What holds one record in the form has a row for each here."""
    for part, like in zip(batches.tensors(whole), batches.tensors(form), strict=True):
        if like.dim() and like.shape[0] == 1 and part.shape[0] != count:
            raise SpecMismatch


def _tensors(dataset: Any, indices: Indices) -> Any:
    """The rows of a TensorDataset or a data set on disk, or of a Subset of one; None of any other data set."""
    if type(dataset) is Subset:
        places = try_quietly(lambda: np.asarray(dataset.indices, dtype=np.int64)[indices])
        return None if places is None else _tensors(dataset.dataset, places)
    if type(dataset) in ON_DISK:
        return try_quietly(lambda: tuple(map(torch.from_numpy, dataset.read(indices))))
    if type(dataset) is not TensorDataset:
        return None
    rows = torch.from_numpy(indices)  # a subscript takes three times as long as index_select to gather what lies apart
    return try_quietly(lambda: tuple(tensor.index_select(0, rows) for tensor in dataset.tensors))


def _as_numbers(part: Any) -> Any:
    """The same with arrays that torch cannot hold (of objects, texts, long floats) as the numbers they hold.

    Edge cases:
        What is no number is not a number, in its own record. Whatever raises stays as it is: torch will not collate it.
    """
    if isinstance(part, np.ndarray | np.generic) and (part.dtype.kind not in "fiubc" or part.dtype.char in "gG"):
        read = try_quietly(lambda: numbers(plain(np.asarray(part).ravel()), ()).reshape(part.shape))
        return part if read is None else np.where(np.isfinite(read), read, np.nan)[()]
    if type(part) is dict:
        return {key: _as_numbers(value) for key, value in part.items()}
    return type(part)(map(_as_numbers, part)) if type(part) in (tuple, list) else part


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


def split_records(chunk: Any, count: int) -> list[Any]:
    """The records of a chunk of ``count``, each a chunk."""
    return [slice_records(chunk, count, i, i + 1) for i in range(count)]


def move_to(device: torch.device, chunk: Any) -> Any:
    """The chunk's tensors on a device."""
    return batches.rebuild(chunk, lambda t: t.to(device))


def declared_form(dataset: Any, collate: Collate | None) -> Any:
    """A chunk of one record of zeros in the data set's form, if its types tell without a record being read."""
    base = base_of(dataset)
    if collate is None and type(base) is TensorDataset:
        return tuple(tensor.new_zeros((1, *tensor.shape[1:])) for tensor in base.tensors)
    if collate is None and type(base) in ON_DISK:
        return tuple(map(torch.from_numpy, base.form))
    return None


def base_of(dataset: Any) -> Any:
    """The data set that Subsets are subsets of."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return dataset


def concatenate_records(alone: Iterable[Any], *, most: int) -> Iterator[tuple[Any, int]]:
    """Chunks of at most ``most`` records that were collated alone and brought to one form, and how many each holds.

    Guarantee:
        A chunk is the concatenation, along the first dimension, of records of equal shapes and equal shared parts: in
        it a tensor has as many rows as there are records if and only if it holds them.
    """
    for group in group_alike(alone, _likeness):
        lengths, start = set(_lengths_of_shared(group[0])), 0
        while start < len(group):
            count = _largest_free(min(most, len(group) - start), lengths)
            yield _concatenate(group[start : start + count]), count
            start += count


def concatenate_alike(chunks: Iterable[tuple[Any, int]]) -> tuple[Any, int]:
    """The records of chunks that are like the first of them, as one chunk, and how many they are."""
    found = list(chunks)
    if len(found) > 1:
        alone = [one for whole, count in found for one in split_records(whole, count)]
        first = group_alike(alone, _likeness)[0]
        return _concatenate(first), len(first)
    return found[0] if found else (None, 0)


def group_alike(records: Iterable[Any], likeness: Callable[[Any], Hashable]) -> list[list[Any]]:
    """The records in groups of one likeness; one for which that raises, or cannot be compared, is a group by itself."""
    groups: dict[Hashable, list[Any]] = {}
    for record in records:
        own: list[Any] = []
        group = try_quietly(lambda record=record, own=own: groups.setdefault(likeness(record), own))  # type: ignore[misc]
        if group is None:
            group = groups.setdefault(object(), own)
        group.append(record)
    return list(groups.values())


def split_chunk(chunk: Any, count: int, most: int) -> Iterator[tuple[Any, int]]:
    """A chunk of ``joined`` in chunks of at most ``most`` records, of which the same is true."""
    lengths, start = set(_lengths(chunk)) - {count}, 0
    while start < count:
        size = _largest_free(min(most, count - start), lengths)
        yield slice_records(chunk, count, start, start + size), size
        start += size


def pick_chunks(chunk: Any, count: int, pieces: Iterable[Indices]) -> Iterator[tuple[Any, int]]:
    """The records of a chunk of ``joined`` in chunks of those that each piece names, of which the same is true."""
    lengths = set(_lengths(chunk)) - {count}
    for places in pieces:
        start = 0
        while start < places.size:
            size = _largest_free(places.size - start, lengths)
            yield _pick(chunk, count, torch.from_numpy(places[start : start + size])), size
            start += size


def slice_records(chunk: Any, count: int, start: int, stop: int) -> Any:
    """Records start .. stop of a chunk of ``count``."""
    return _pick(chunk, count, slice(start, stop))


def _pick(chunk: Any, count: int, places: slice | Tensor) -> Any:
    """Some records of a chunk of ``count``."""
    if isinstance(chunk, Tensor):
        return chunk[places] if chunk.dim() and chunk.shape[0] == count else chunk
    if isinstance(chunk, Mapping):
        return batches.mapping_like(chunk, {key: _pick(value, count, places) for key, value in chunk.items()})
    if isinstance(chunk, tuple | list) and not _is_plain_list(chunk):
        return batches.sequence_like(chunk, [_pick(value, count, places) for value in chunk])
    return chunk


def first_record(chunk: Any, count: int) -> Any:
    """The form of one record, from a public chunk of ``count``."""
    return slice_records(chunk, count, 0, 1)


def check_one_row(form: Any, per_batch: bool) -> None:
    """Refuse a collate function that makes several rows of one record: each of them would be clipped alone."""
    found = batches.size(form, per_batch)
    if found != 1:
        raise InvalidInput(
            f"one record is collated to {found} rows: expected one row a record, on the first dimension. "
            "Put what a record has several of on the second dimension."
        )


def _concatenate(alone: list[Any]) -> Any:
    like = alone[0]
    if isinstance(like, Tensor):
        return torch.cat(alone) if _holds_record(like) else like
    if isinstance(like, Mapping):
        return batches.mapping_like(like, {key: _concatenate([each[key] for each in alone]) for key in like})
    if isinstance(like, tuple | list) and not _is_plain_list(like):
        return batches.sequence_like(
            like, [_concatenate([each[place] for each in alone]) for place in range(len(like))]
        )
    return like


def _likeness(record: Any) -> Hashable:
    """What records of one chunk have in common: the shapes of what holds them, and all of what they share."""
    if isinstance(record, Tensor):
        if _holds_record(record):
            return "rows", tuple(record.shape[1:]), record.device
        return "shared", tuple(record.shape), pickle.dumps(record.cpu().contiguous().view(-1).view(torch.uint8).numpy())
    if isinstance(record, Mapping):
        return tuple((key, _likeness(value)) for key, value in record.items())
    if isinstance(record, tuple | list) and not _is_plain_list(record):
        return tuple(_likeness(value) for value in record)
    return pickle.dumps(record)


def _lengths_of_shared(record: Any) -> list[int]:
    return [length for length in _lengths(record) if length != 1]


def _lengths(tree: Any) -> list[int]:
    """How many rows, or entries, each tensor or list has."""
    if isinstance(tree, Tensor):
        return [tree.shape[0]] if tree.dim() else []
    if _is_plain_list(tree):
        return [len(tree)]
    values = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, tuple | list) else ()
    return [length for value in values for length in _lengths(value)]


def _largest_free(count: int, taken: set[int]) -> int:
    """The largest number of records up to ``count`` that no shared part has rows; 1 always is."""
    return next(size for size in range(count, 0, -1) if size not in taken or size == 1)


def _holds_record(part: Tensor) -> bool:
    return part.dim() > 0 and part.shape[0] == 1


def _is_plain_list(part: Any) -> bool:
    """A list of things that hold nothing, such as strings: a shared part, as Python would read all of a longer one."""
    plain = type(part) in (tuple, list)
    return plain and len(part) > 0 and not any(isinstance(each, Tensor | Mapping | tuple | list) for each in part)


Made = TypeVar("Made")


class SpecMismatch(Exception):
    """Records have not the public form; it never leaves the reading of records."""


def conform_to_spec(tree: Any, form: Any) -> tuple[Any, Tensor | None]:
    """Records collated to ``tree`` in the public ``form``, and which of them have other values, if any may.

    The form is a chunk of one record: its containers, keys and their order, counts, dimensions and types. Sizes are
    free, as sequences have lengths.

    Guarantee:
        Row by row. A value is kept as it is, whatever type its container has for the sake of another record: 1.0 and
        "1" are the whole number 1, 2 + 0j is the real number 2. A row with a value that the form's type does not hold
        (0.5 where whole numbers are) is marked; floats are rounded to the form's precision.
        Nothing of how a record was written (the order of its keys, a list for a tuple) stays in the chunk.

    Edge cases:
        keys that the form lacks    left out
        another structure           raises SpecMismatch

    Example:
        >>> whole, wrong = conform_to_spec([torch.tensor([1.0, 0.5])], [torch.zeros(1, dtype=torch.int64)])
        >>> whole[0].tolist(), wrong.tolist()
        ([1, 0], [False, True])
        >>> one = torch.ones(1)
        >>> list(conform_to_spec({"b": one, "a": one, "c": one}, {"a": one, "b": one})[0])
        ['a', 'b']
    """
    wrong: list[Tensor] = []
    made = _conform(tree, form, wrong)
    return made, torch.stack(wrong).any(0) if wrong else None


def _conform(tree: Any, form: Any, wrong: list[Tensor]) -> Any:
    if isinstance(form, Tensor):
        return _tensor(tree, form, wrong)
    if isinstance(form, Mapping):
        if not isinstance(tree, Mapping) or not set(form) <= set(tree):
            raise SpecMismatch
        return batches.mapping_like(form, {key: _conform(tree[key], like, wrong) for key, like in form.items()})
    if opaque(form) or opaque(tree):
        if not (opaque(form) and opaque(tree)):
            raise SpecMismatch
        return tree
    if not isinstance(tree, tuple | list) or len(tree) != len(form):
        raise SpecMismatch
    return batches.sequence_like(form, [_conform(part, like, wrong) for part, like in zip(tree, form, strict=True)])


def _tensor(tree: Any, form: Tensor, wrong: list[Tensor]) -> Any:
    if isinstance(tree, tuple | list) and form.dim() == 1 and opaque(tree):
        values = [number(each) for each in tree]  # texts, or numbers of a type that torch does not know
        tree = torch.tensor([math.nan if value is None else value for value in values], dtype=torch.float64)
    if not isinstance(tree, Tensor) or tree.is_meta or tree.dim() != form.dim() or tree.layout != form.layout:
        raise SpecMismatch
    tree = tree.detach()
    if tree.is_complex() and not form.is_complex():
        wrong.append(_rows(tree.imag != 0, form))
        tree = tree.real
    made = tree.to(form.dtype)
    if not (form.is_floating_point() or form.is_complex()) and made.dtype != tree.dtype:
        wrong.append(_rows(made.to(tree.dtype) != tree, form))
    return made.as_subclass(Tensor) if type(form) is Tensor else made


def _rows(wrong: Tensor, form: Tensor) -> Tensor:
    """Which records have an entry that is wrong: rows of what holds them; all of what one record shares."""
    held = form.dim() > 0 and form.shape[0] == 1
    return wrong.reshape(wrong.shape[0], -1).any(1) if held else wrong.any()[None]


def opaque(tree: Any) -> bool:
    """What holds no tensor, such as a list of strings: its length is the number of records, not its form."""
    if isinstance(tree, tuple | list):
        return all(not isinstance(part, Tensor | Mapping) and opaque(part) for part in tree)
    return not isinstance(tree, Tensor | Mapping)
