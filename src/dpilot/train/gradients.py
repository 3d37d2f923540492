"""The engine as a function of a chunk of records: a public number of rows at a time, replayed where possible.

Records that cannot be computed are null: nothing is raised because of one record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from dpilot import engine
from dpilot.engine import PerSample
from dpilot.engine import batch as batches
from dpilot.engine.base import empty, trainable
from dpilot.engine.replay import capture
from dpilot.numerics.devices import leave_bounds
from dpilot.numerics.grid import Grid
from dpilot.train.batches.reader import RecordChunk, concatenate_records, split_chunk
from dpilot.train.options import Options

_STEP: Final = 8  # sizes of chunks are multiples of this: GPUs like them
_FEW: Final = 8  # records of a shape of their own that are computed together
ROOM: Final = 2.0
"""Standard deviations of a batch's size for which there is room in the usual chunks: one batch in fifty has none."""
WIDE: Final = 6.0
"""The same for hardened noise: of 64 records, one batch in a million has none."""


def per_sample_of(
    model: nn.Module, loss_fn: Callable[..., Tensor], options: Options, rows: int | None = None, form: Any = None,
    *, replayed: bool = False,
) -> PerSampleOf:  # fmt: skip
    """The engine as a function of a chunk, under autocast where asked for; with ``rows``, in chunks of exactly so many.

    How many records a chunk has is a secret. It is filled up (engine.Graphed), so that a model or a loss that goes by
    the size of its batch meets a public number. ``form`` is a public chunk; records of other shapes (longer or shorter
    ones) come in small groups, which are computed in chunks of 8.

    Edge cases:
        The sum of a ``replayed`` chunk must be asked for before the next chunk; those of a second shape are launched.
    """
    device, hardened = next(model.parameters()).device, options.hardened
    chosen: dict[str, Any] = {"engine": options.engine, "per_batch": options.per_batch}
    chosen["low_memory"] = two_passes(options, device)
    run: PerSampleOf = partial(engine.per_sample, model, loss_fn, **chosen)
    if rows is not None:
        fixed = partial(engine.Graphed, model, loss_fn, forms=1, replayed=replayed, **chosen)
        few = 1 if hardened else min(rows, _FEW)  # those of other forms have no places of their own
        run = by_shape(fixed(rows=rows), fixed(rows=few), few, form, options.per_batch)

    def gradients(chunk: Any, places: Tensor | None = None) -> engine.PerSample:
        with (
            torch.autocast(device.type, dtype=torch.bfloat16) if options.amp else nullcontext(),
            leave_bounds() if hardened else nullcontext(),
        ):
            return run_at(places, run, chunk)

    return gradients


def run_at(places: Tensor | None, run: PerSampleOf, chunk: Any) -> PerSample:
    """The gradients of a chunk with its records in the rows ``places``, or where they are put if nothing is said."""
    return run(chunk) if places is None else run(chunk, places)


def by_shape(whole: PerSampleOf, few: PerSampleOf, most: int, form: Any, per_batch: bool) -> PerSampleOf:
    """``whole`` for chunks in the shapes of the form, ``few`` in pieces of ``most`` for others."""
    own = None if form is None else shapes(form)

    def gradients(chunk: Any, places: Tensor | None = None) -> engine.PerSample:
        if own is None or shapes(chunk) == own:
            return run_at(places, whole, chunk)
        n = batches.size(chunk, per_batch)
        return concatenate_handles([few(piece) for piece, _ in split_chunk(chunk, n, most)])

    return gradients


def shapes(chunk: Any) -> list[tuple[int, ...]]:
    """The shapes of a chunk's tensors without their first dimension."""
    return [tuple(t.shape[1:]) for t in batches.tensors(chunk)]


def replays(options: Options, device: torch.device) -> bool:
    """Whether chunks are replayed: on a CUDA device, unless an engine was named."""
    return capture.can_replay(device) and options.engine == "auto"


def two_passes(options: Options, device: torch.device) -> bool:
    """Whether memory is saved by a second backward pass: not where half a batch is replayed at a time."""
    return options.low_memory and not replays(options, device)


def even_rows(
    expected: float, rate: float, most: int, *, low_memory: bool = False, ranks: int = 1, room: float = ROOM
) -> int:
    """A size for chunks that all but the largest batches fill well: m of them hold ``room`` deviations more than
    the expected batch, or one record more. A replayed chunk costs the same whatever it holds. For low memory m is at
    least 2; of several ``ranks`` each has as many.

    Example:
        >>> even_rows(256, 0.01, 512), even_rows(256, 0.01, 512, low_memory=True)
        (288, 144)
        >>> even_rows(1000, 0.01, 256), even_rows(64, 1.0, 512)
        (216, 72)
        >>> even_rows(256, 0.01, 512, ranks=2)
        144
    """
    needed = _usual_size(expected, rate, room)
    chunks = max(-(-needed // most), 2 if low_memory else 1)
    chunks = -(-chunks // ranks) * ranks
    return min(most, math.ceil(needed / chunks / _STEP) * _STEP)


def usual_chunks(expected: float, rate: float, rows: int, room: float = ROOM) -> int:
    """How many chunks of so many rows hold all but the largest batches: a public number."""
    return -(-_usual_size(expected, rate, room) // rows)


def _usual_size(expected: float, rate: float, room: float) -> int:
    """So many standard deviations more than the expected batch; of full batches a place for one record more."""
    return math.ceil(expected + max(1.0, room * math.sqrt(expected * (1 - rate))))


def draw_places(count: int, rows: int) -> Tensor | None:
    """A row of its own for each record of a chunk, all as likely; None where they take all of them.

    What they are is secret, and how many numbers are drawn for them public.
    """
    places = torch.randperm(rows)[:count]
    return places if count < rows else None


PerSampleOf = Callable[..., PerSample]
"""The gradients of a chunk, its records in given rows if the chunk has rows that it does not fill."""


OUT_OF_MEMORY = (MemoryError, torch.OutOfMemoryError)
"""The machine's trouble, not a record's: these stop a run, and leave it spent."""
STOPS = (KeyboardInterrupt, *OUT_OF_MEMORY)
"""What no record raises; SystemExit, which is no Exception, may be one's doing."""


def null_on_error(
    per_sample: PerSampleOf, model: torch.nn.Module, again: PerSampleOf | None = None, rows: int | None = None
) -> Callable[[RecordChunk], PerSample]:
    """The same function, of a chunk that is halved, and computed by ``again``, as long as it raises.

    Of ``rows`` rows, where they are that many, the records take random ones (``sampling.scatter``), and keep them.

    Guarantee:
        No exception depends on a record: one that raises on its own (a label outside the classes, another shape) has
        an infinite norm, which every rule gives weight 0, and adds exact zeros. The others are computed as before, in
        as many rows as before: a record that raises moves nothing but itself.

    Edge cases:
        On a GPU a number that a kernel takes for a place which does not exist ends the process, exceptions or not.
        ``labels`` sees to labels outside the classes; ids outside a vocabulary are left.
        A mistake in the model or the loss would make every record null. That is why a run first runs on
        made-up records, where such a mistake is raised.
    """
    run_again = again or per_sample

    def gradients(chunk: RecordChunk) -> PerSample:
        places = None if rows is None else draw_places(chunk.count, rows)
        try:
            return run_at(places, per_sample, chunk.whole)
        except STOPS:
            raise
        except BaseException:
            alone = chunk.alone()
            return by_halves(alone, torch.arange(len(alone)) if places is None else places)

    def by_halves(records: Sequence[Any], places: Tensor) -> PerSample:
        middle = len(records) // 2
        halves = (slice(middle), slice(middle, None)) if middle else ()
        return concatenate_handles([attempt(records[h], places[h]) for h in halves]) if halves else _null(model)

    def attempt(records: Sequence[Any], places: Tensor) -> PerSample:
        there = [number for number, record in enumerate(records) if record is not None]
        present, places = [records[number] for number in there], places[there]
        nulls = [_null(model)] * (len(records) - len(present))
        try:
            wholes = list(concatenate_records(present, most=len(present)))
            counts = [count for _, count in wholes]
            none: list[Tensor | None] = [None] * len(counts)
            theirs = none if rows is None else list(torch.split(places, counts))
            made = [run_at(at, run_again, whole) for (whole, _), at in zip(wholes, theirs, strict=True)]
            return concatenate_handles([*made, *nulls])
        except STOPS:
            raise
        except BaseException:
            return concatenate_handles([by_halves(present, places), *nulls])

    return gradients


def _null(model: torch.nn.Module) -> PerSample:
    nothing = empty(trainable(model), "none", "the record could not be computed")
    squares = {name: square.new_full((1,), torch.inf) for name, square in nothing.squares.items()}
    first = next(iter(squares.values()))
    return PerSample(first, nothing.engine, nothing.reason, squares, nothing.sum_with)


def concatenate_handles(parts: Sequence[PerSample]) -> PerSample:
    """One handle for records that were computed in several parts."""
    if len(parts) == 1:
        return parts[0]
    names, counts = parts[0].names, [part.norms.shape[0] for part in parts]

    def sums(weights: Mapping[str, Tensor], grid: Grid | None = None) -> dict[str, Tensor]:
        columns = {name: torch.split(w, counts) for name, w in weights.items()}
        each = [part.sum_with({name: columns[name][i] for name in weights}, grid) for i, part in enumerate(parts)]
        return {name: torch.stack([part[name] for part in each]).sum(0) for name in weights}

    return PerSample(
        norms=torch.cat([part.norms for part in parts]),
        engine=parts[0].engine,
        reason="one record at a time" if max(counts) == 1 else parts[0].reason,
        squares={name: torch.cat([part.squares[name] for part in parts]) for name in names},
        sum_with=sums,
    )


Loss = Callable[..., Tensor]

_CLASSES: Final = frozenset({nn.CrossEntropyLoss, nn.NLLLoss})  # losses whose labels torch itself defines


def null_outside_classes(loss_fn: Loss, device: torch.device) -> Loss:
    """The same loss, not a number for a record whose label is none; on the CPU, and any other loss, as it is.

    On the CPU such a label is an error, which ``null_on_error`` turns into the null record. On a GPU it is an assertion
    in a kernel, after which the process can do nothing there: one record would decide whether a run goes on.

    Guarantee:
        A record's loss depends on its own outputs and label alone. For labels that are classes, or ignored, it is the
        same number with the same gradient; for others its gradient is not a number, so it is the null record.

    Edge cases:
        Losses of one's own, and ids outside a vocabulary, are not seen: there such a record still ends the process.

    Example:
        >>> safe = null_outside_classes(nn.CrossEntropyLoss(reduction="none"), torch.device("meta"))
        >>> [round(each, 3) for each in safe(torch.zeros(4, 2), torch.tensor([0, 1, 2, -100])).tolist()]
        [0.693, 0.693, nan, 0.0]
    """
    if device.type == "cpu" or type(loss_fn) not in _CLASSES:
        return loss_fn
    return partial(_losses, loss_fn)


def _losses(loss_fn: Any, outputs: Any, labels: Any) -> Tensor:
    whole = isinstance(labels, Tensor) and labels.dtype in (torch.int64, torch.uint8)
    if not (whole and isinstance(outputs, Tensor) and outputs.dim() == 2 and labels.dim() == 1):
        return loss_fn(outputs, labels)  # type: ignore[no-any-return]
    number = labels.long()
    taken = ((number >= 0) & (number < outputs.shape[1])) | (number == loss_fn.ignore_index)
    losses: Tensor = loss_fn(outputs, labels.masked_fill(~taken, 0))
    return losses * torch.ones_like(losses).masked_fill(~taken, torch.nan)
