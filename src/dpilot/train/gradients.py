"""The engine as a function of a chunk of records: a public number of rows at a time, replayed where possible."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from dpilot import engine
from dpilot.engine import batch as batches
from dpilot.engine.replay import capture
from dpilot.train.options import Options
from dpilot.train.records.nulls import PerSampleOf, concatenate_handles
from dpilot.train.records.reader import split_chunk

_STEP: Final = 8  # sizes of chunks are multiples of this: GPUs like them
_FEW: Final = 8  # records of a shape of their own that are computed together


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
    device = next(model.parameters()).device
    chosen: dict[str, Any] = {"engine": options.engine, "per_batch": options.per_batch}
    chosen["low_memory"] = two_passes(options, device)
    run: PerSampleOf = partial(engine.per_sample, model, loss_fn, **chosen)
    if rows is not None:
        fixed = partial(engine.Graphed, model, loss_fn, forms=1, replayed=replayed, **chosen)
        run = by_shape(fixed(rows=rows), fixed(rows=min(rows, _FEW)), form, options.per_batch)

    def gradients(chunk: Any) -> engine.PerSample:
        with torch.autocast(device.type, dtype=torch.bfloat16) if options.amp else nullcontext():
            return run(chunk)

    return gradients


def by_shape(whole: PerSampleOf, few: PerSampleOf, form: Any, per_batch: bool) -> PerSampleOf:
    """``whole`` for chunks in the shapes of the form, ``few`` in pieces for others."""
    own = None if form is None else shapes(form)

    def gradients(chunk: Any) -> engine.PerSample:
        n = batches.size(chunk, per_batch)
        if own is None or shapes(chunk) == own or n <= 1:
            return whole(chunk)
        return concatenate_handles([few(piece) for piece, _ in split_chunk(chunk, n, _FEW)])

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


def even_rows(expected: float, rate: float, most: int, *, low_memory: bool = False) -> int:
    """A size for chunks that all but the largest batches fill well: m of them hold two standard deviations more than
    the expected batch. A replayed chunk costs the same whatever it holds. For low memory m is at least 2.

    Example:
        >>> even_rows(256, 0.01, 512), even_rows(256, 0.01, 512, low_memory=True)
        (288, 144)
        >>> even_rows(1000, 0.01, 256), even_rows(64, 1.0, 512)
        (216, 64)
    """
    needed = math.ceil(expected + 2 * math.sqrt(expected * (1 - rate)))
    chunks = max(-(-needed // most), 2 if low_memory else 1)
    return min(most, math.ceil(needed / chunks / _STEP) * _STEP)
