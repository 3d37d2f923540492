"""Per-sample gradients of chunks on a GPU, some of whose records model and loss do not take: those are null."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn

from dpilot.engine import batch as batches
from dpilot.engine.base import LossFunction, PerSample
from dpilot.engine.forms import form_of, only_tensors
from dpilot.engine.masking import LookingFirst, Made, elsewhere
from dpilot.engine.ranges import Known, Range, known, strictly

PerSampleOf = Callable[[Any], PerSample]


@final
class Within:
    """What a model and its loss take, found for the first chunk of each form and kept.

    Guarantee:
        What is found depends on model, loss and form, never on a record.

    Example:
        >>> run = lambda chunk: "on the CPU nothing changes"
        >>> Within(nn.Linear(2, 3), nn.CrossEntropyLoss(reduction="none"), per_batch=False).of(run, run) is run
        True
    """

    def __init__(self, model: nn.Module, loss_fn: LossFunction, per_batch: bool) -> None:
        self._model, self._loss_fn, self._per_batch = model, loss_fn, per_batch
        self._known: dict[Any, Known | None] = {}

    def of(self, run: PerSampleOf, launched: PerSampleOf) -> PerSampleOf:
        """``run`` for chunks that may hold numbers which model and loss do not take; on the CPU ``run`` itself.

        Guarantee:
            A record with a number outside the ranges has an infinite norm and adds exact zeros; the others are what
            they are beside a record of usual numbers. Nothing waits for the GPU, and shapes stay: replays go on.

        Edge cases:
            floats decide                     the chunk is ``launched`` and every operation looked at: IndexError for a
                                              chunk in trouble. That is slow, as the GPU is waited for wherever
                                              numbers are places; but which floats are none, no range tells
            model that cannot be looked at    as it is
            parts that are no tensors         as they are
        """
        if not elsewhere(*self._model.parameters(), *self._model.buffers()):
            return run

        def gradients(chunk: Any) -> PerSample:
            n = batches.size(chunk, self._per_batch)
            taken = self._found(chunk, n, launched) if n and only_tensors(chunk) else None
            if taken is None:
                return run(chunk)
            valid, null = usual_for_others(chunk, taken.ranges)
            made = looked_at(partial(launched, valid)) if taken.floats_decide else run(valid)
            return made if null is None else nulled(made, null)

        return gradients

    def _found(self, chunk: Any, n: int, launched: PerSampleOf) -> Known | None:
        form = form_of(chunk, n)
        if form not in self._known:
            self._known[form] = self._usable(chunk, n, launched)
        return self._known[form]

    def _usable(self, chunk: Any, n: int, launched: PerSampleOf) -> Known | None:
        """What is known, unless records would have to be looked at where even made-up ones cannot be.

        Looking must not raise: who called would take it for the trouble of every record.
        """
        taken = None
        with suppress(Exception):
            taken = known(self._model, self._loss_fn, chunk, n, self._per_batch)
        if taken is None or not taken.floats_decide:
            return taken
        return taken if strictly(partial(launched, taken.made_up), self._model, self._loss_fn)[0] else None


def usual_for_others(chunk: Any, ranges: tuple[Range | None, ...]) -> tuple[Any, Tensor | None]:
    """The chunk with usual numbers in the place of records outside the ranges, and which those are."""
    pairs = zip(batches.tensors(chunk), ranges, strict=True)
    outs = [limits.outside(t) for t, limits in pairs if limits is not None and not limits.everything(t.dtype)]
    if not outs:
        return chunk, None
    null = torch.stack(outs).any(0) if len(outs) > 1 else outs[0]
    each = iter(ranges)

    def usual(t: Tensor) -> Tensor:
        limits = next(each)
        if limits is None:
            return t
        rows = null.view(-1, *(1,) * (t.dim() - 1))
        return torch.where(rows, limits.usual, t.long()).to(t.dtype)  # unsigned types cannot be chosen from everywhere

    return batches.rebuild(chunk, usual), null


def nulled(made: PerSample, null: Tensor) -> PerSample:
    """The same gradients, with infinite norms where records are null."""
    together = torch.stack(list(made.squares.values())).masked_fill_(null, torch.inf)
    squares = dict(zip(made.squares, together.unbind(0), strict=True))
    return replace(made, norms=made.norms.masked_fill(null, torch.inf), squares=squares)


def looked_at(work: Callable[[], Made]) -> Made:
    """What the work gives; IndexError before an operation uses a number that it does not take, never without a look."""
    with LookingFirst() as looking:
        made = work()
    if looking.found:
        raise IndexError(looking.found)
    return made
