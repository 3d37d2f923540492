"""Records collated one by one, and joined to chunks: what a record is made of never depends on who is beside it.

A tensor of a record collated alone holds the record if its first dimension is 1, and is shared if it is not: a mask, a
table of positions. That is read off one record, never off a chunk, where a shared tensor of T rows and T records look
alike. A chunk is made of records whose shapes are equal, so that none is padded to the length of another, and whose
shared parts are equal.

>>> alone = [{"x": torch.tensor([[float(i)]]), "positions": torch.arange(3)} for i in range(3)]
>>> [(count, whole["x"].shape, whole["positions"].shape) for whole, count in joined(alone, most=8)]
[(2, torch.Size([2, 1]), torch.Size([3])), (1, torch.Size([1, 1]), torch.Size([3]))]
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from dpilot.engine import batch as batches
from dpilot.errors import InvalidInput
from dpilot.train.form import quietly

__all__ = ["check_one_row", "first", "grouped", "joined", "pieces", "rows"]


def joined(alone: Iterable[Any], *, most: int) -> Iterator[tuple[Any, int]]:
    """Chunks of at most ``most`` records that were collated alone and brought to one form, and how many each holds.

    Guarantee:
        A chunk is the concatenation, along the first dimension, of records of equal shapes and equal shared parts: in
        it a tensor has as many rows as there are records if and only if it holds them.
    """
    for group in grouped(alone, _likeness):
        lengths, start = set(_shared_lengths(group[0])), 0
        while start < len(group):
            count = _allowed(min(most, len(group) - start), lengths)
            yield _joined(group[start : start + count]), count
            start += count


def grouped(records: Iterable[Any], likeness: Callable[[Any], Hashable]) -> list[list[Any]]:
    """The records in groups of one likeness; one for which that raises, or cannot be compared, is a group by itself."""
    groups: dict[Hashable, list[Any]] = {}
    for record in records:
        own: list[Any] = []
        group = quietly(lambda record=record, own=own: groups.setdefault(likeness(record), own))  # type: ignore[misc]
        if group is None:
            group = groups.setdefault(object(), own)
        group.append(record)
    return list(groups.values())


def pieces(chunk: Any, count: int, most: int) -> Iterator[tuple[Any, int]]:
    """A chunk of ``joined`` in chunks of at most ``most`` records, of which the same is true."""
    lengths, start = set(_lengths(chunk)) - {count}, 0
    while start < count:
        size = _allowed(min(most, count - start), lengths)
        yield rows(chunk, count, start, start + size), size
        start += size


def rows(chunk: Any, count: int, start: int, stop: int) -> Any:
    """Records start .. stop of a chunk of ``count``."""
    if isinstance(chunk, Tensor):
        return chunk[start:stop] if chunk.dim() and chunk.shape[0] == count else chunk
    if isinstance(chunk, Mapping):
        return batches.mapping_like(chunk, {key: rows(value, count, start, stop) for key, value in chunk.items()})
    if _listed(chunk):
        return chunk[start:stop] if len(chunk) == count else chunk
    if isinstance(chunk, tuple | list):
        return batches.sequence_like(chunk, [rows(value, count, start, stop) for value in chunk])
    return chunk


def first(chunk: Any, count: int) -> Any:
    """The form of one record, from a public chunk of ``count``."""
    return rows(chunk, count, 0, 1)


def check_one_row(form: Any, per_batch: bool) -> None:
    """Refuse a collate function that makes several rows of one record: each of them would be clipped alone."""
    found = batches.size(form, per_batch)
    if found != 1:
        raise InvalidInput(
            f"one record is collated to {found} rows: expected one row a record, on the first dimension. "
            "Put what a record has several of on the second dimension."
        )


def _joined(alone: list[Any]) -> Any:
    like = alone[0]
    if isinstance(like, Tensor):
        return torch.cat(alone) if _holds(like) else like
    if isinstance(like, Mapping):
        return batches.mapping_like(like, {key: _joined([each[key] for each in alone]) for key in like})
    if _listed(like):
        return type(like)(value for each in alone for value in each) if len(like) == 1 else like
    if isinstance(like, tuple | list):
        return batches.sequence_like(like, [_joined([each[place] for each in alone]) for place in range(len(like))])
    return like


def _likeness(record: Any) -> Hashable:
    """What records of one chunk have in common: the shapes of what holds them, and all of what they share."""
    if isinstance(record, Tensor):
        if _holds(record):
            return "rows", tuple(record.shape[1:]), record.device
        return "shared", tuple(record.shape), pickle.dumps(record.cpu().contiguous().view(-1).view(torch.uint8).numpy())
    if isinstance(record, Mapping):
        return tuple((key, _likeness(value)) for key, value in record.items())
    if _listed(record) and len(record) == 1:
        return "list"
    if isinstance(record, tuple | list):
        return tuple(_likeness(value) for value in record)
    return pickle.dumps(record)


def _shared_lengths(record: Any) -> list[int]:
    return [length for length in _lengths(record) if length != 1]


def _lengths(tree: Any) -> list[int]:
    """How many rows, or entries, each tensor or list has."""
    if isinstance(tree, Tensor):
        return [tree.shape[0]] if tree.dim() else []
    if _listed(tree):
        return [len(tree)]
    values = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, tuple | list) else ()
    return [length for value in values for length in _lengths(value)]


def _allowed(count: int, taken: set[int]) -> int:
    """The largest number of records up to ``count`` that no shared part has rows; 1 always is."""
    return next(size for size in range(count, 0, -1) if size not in taken or size == 1)


def _holds(part: Tensor) -> bool:
    return part.dim() > 0 and part.shape[0] == 1


def _listed(part: Any) -> bool:
    """A list of things that hold nothing, such as strings: one a record, if there is one of one record."""
    plain = type(part) in (tuple, list)
    return plain and len(part) > 0 and not any(isinstance(each, Tensor | Mapping | tuple | list) for each in part)
