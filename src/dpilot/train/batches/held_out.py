"""Held-out records as a trained model sees them: in the public form, in chunks by place, none changing another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpilot._quiet import try_quietly
from dpilot.errors import InvalidInput
from dpilot.keys import Chain, fresh_key
from dpilot.train.batches.reader import Collate, Reader, concatenate_records, declared_form, first_record

__all__ = ["evaluation_form", "map_records", "training_form"]

Rows = TypeVar("Rows", Tensor, NDArray[np.float64])


def training_form(dataset: Any, example: Any) -> Any:
    """A chunk in the public form of the records (x, y, ...): ``example``, or what the types of ``dataset`` show.

    Guarantee:
        No record is read. A form that only a record could show is refused: that record would decide what the others
        are read as.
    """
    form = declared_form(dataset, None) if example is None else example
    if form is None:
        kind = type(getattr(dataset, "dataset", dataset)).__name__
        raise InvalidInput(
            f"a {kind} does not show the form of its records before one is read: expected example=, a public batch "
            "such as (torch.zeros(1, 3), torch.zeros(1, dtype=torch.long)), or a TensorDataset."
        )
    label = form[1] if isinstance(form, tuple | list) and len(form) > 1 else None
    if not isinstance(label, Tensor) or label.dim() != 1:
        raise InvalidInput(
            "the records have not the form (x, y) with y one class: expected that, or an example= of it."
        )
    return form


def evaluation_form(dataset: Any, form: Any, *, grouped: bool) -> Any:
    """The form of held-out records: what their types tell, or that of training records with their group, if any."""
    known = declared_form(dataset, None)
    if known is not None:
        return known
    return (*form, torch.zeros_like(form[1])) if grouped and len(form) == 2 else form


def map_records(
    dataset: Any, form: Any, function: Callable[[Any], Rows], *, chunk_size: int = 512, collate: Collate | None = None
) -> Iterator[Rows]:
    """What ``function(chunk)`` makes of the records, a row for each in random order, some at a time.

    Guarantee:
        Which records go together is decided by a secret order: what a kernel computes may depend on the place of a
        row (``sampling.scatter``), and one record more takes the place of at most one other. A record of another form,
        or for which ``function`` raises when it is alone, is the null record. In a chunk that does not compute another
        record stands in its place, and its row is dropped, so that the others are computed where, and beside as many,
        as without it. Where records compute alone and not beside each other, each stands in all places.
    """
    reader = Reader(dataset, collate, first_record(form, form[1].shape[0]))
    order, starts = draw_order(len(dataset)), range(0, len(dataset), chunk_size)
    for chunk in reader.chunks(order[start : start + chunk_size] for start in starts):
        together = try_quietly(partial(function, chunk.whole))
        yield from _map_apart(chunk.alone(), function) if together is None else (together,)


def draw_order(count: int) -> NDArray[np.int64]:
    """A secret order of so many records."""
    return Chain(fresh_key("order of held-out records")).generator("order").permutation(count)


def _map_apart(alone: list[Any], function: Callable[[Any], Rows]) -> Iterator[Rows]:
    """The rows of the records that compute when they are alone, where their chunk does not compute."""

    def rows_of(records: list[Any]) -> Rows | None:
        ((whole, _),) = concatenate_records(records, most=len(records))
        return try_quietly(partial(function, whole))

    computes = [try_quietly(partial(function, each)) is not None for each in alone]
    places = np.flatnonzero(computes)
    if not len(places):
        return
    stand_in = alone[places[0]]
    together = rows_of([each if good else stand_in for each, good in zip(alone, computes, strict=True)])
    if together is not None:
        yield together[places]
        return
    for place in places:
        own = rows_of([alone[place]] * len(alone))
        if own is not None:
            yield own[place : place + 1]
