"""A run under way: the private step, and the free post-processing around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dpilot import engine
from dpilot.clipping import State
from dpilot.keys import Chain
from dpilot.records import StepRecord
from dpilot.train import averages
from dpilot.train.nulls import PerSampleOf
from dpilot.train.optimizers import free_step
from dpilot.train.options import Options
from dpilot.train.randomness import own_randomness
from dpilot.train.step import Setting, private_step


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


def per_sample_of(model: nn.Module, loss_fn: Callable[..., Tensor], options: Options) -> PerSampleOf:
    """The engine as a function of a chunk, under autocast where asked for."""
    kind = next(model.parameters()).device.type

    def gradients(chunk: Any) -> engine.PerSample:
        with torch.autocast(kind, dtype=torch.bfloat16) if options.amp else nullcontext():
            return engine.per_sample(
                model,
                loss_fn,
                chunk,
                options.engine,
                per_batch=options.per_batch,
                low_memory=options.low_memory,
            )

    return gradients
