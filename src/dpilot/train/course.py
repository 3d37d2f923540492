"""A run under way: the private step, and the free post-processing around it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from dpilot import engine
from dpilot.clipping import State
from dpilot.engine import batch as batches
from dpilot.engine import capture
from dpilot.keys import Chain
from dpilot.records import StepRecord
from dpilot.train import averages
from dpilot.train.collating import pieces
from dpilot.train.nulls import PerSampleOf, joined
from dpilot.train.optimizers import free_step
from dpilot.train.options import Options
from dpilot.train.randomness import own_randomness
from dpilot.train.step import Setting, private_step

_STEP: Final = 8  # sizes of chunks are multiples of this: GPUs like them
_FEW: Final = 8  # records of a shape of their own that are computed together


@dataclass(slots=True)
class Course:
    """Where a run stands. Everything in it was declared or released: it may be stored and shown.

    ``rates`` are the optimizer's own step sizes, which the schedule multiplies; ``mean`` is the average of ``averaged``
    iterates so far.
    """

    setting: Setting
    options: Options
    state: State
    rates: list[float]
    records: list[StepRecord] = field(default_factory=list)
    mean: dict[str, Tensor] = field(default_factory=dict)
    averaged: int = 0

    @property
    def taken(self) -> int:
        """How many steps were taken."""
        return len(self.records)

    def step(self, chain: Chain, chunks: Iterable[Any]) -> StepRecord:
        """Take the next step on the chunks of its batch, with the step's own randomness, and note what it used."""
        before, place = self.state, self.taken
        record = StepRecord(place, float(before.threshold), float(before.bound), before.frozen)
        self._set_rates(place)
        with own_randomness(chain):
            self.state = private_step(self.setting, before, chunks)
        if not before.frozen:
            self._average(place)
        self.records.append(record)
        return record

    def finish(self) -> None:
        """What is free once the last step was taken: a step along the momentum, and the average as the model."""
        if self.options.free_step:
            free_step(self.setting.optimizer)
        averages.put(self.mean, self.setting.model)

    def _set_rates(self, place: int) -> None:
        factor = self.options.schedule.factor(place, self.setting.plan.steps)
        for group, rate in zip(self.setting.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor

    def _average(self, place: int) -> None:
        kind = self.options.average
        if kind is not None and kind.counts(place, self.setting.plan.steps):
            self.mean = averages.mixed(self.mean, self.setting.model, kind.keep(self.averaged))
            self.averaged += 1


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
        return joined([few(piece) for piece, _ in pieces(chunk, n, _FEW)])

    return gradients


def shapes(chunk: Any) -> list[tuple[int, ...]]:
    """The shapes of a chunk's tensors without their first dimension."""
    return [tuple(t.shape[1:]) for t in batches.tensors(chunk)]


def replays(options: Options, device: torch.device) -> bool:
    """Whether chunks are replayed: on a CUDA device, unless an engine was named."""
    return device.type in capture.KINDS and options.engine == "auto"


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
