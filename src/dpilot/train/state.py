"""A run under way: the private step, and the free post-processing around it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpilot.clipping import State
from dpilot.keys import Chain
from dpilot.records import PUBLIC_VALIDATION, RunRecord, StepRecord, ValidationRecord
from dpilot.train import options, payment
from dpilot.train.optimizers import free_step
from dpilot.train.options import Options
from dpilot.train.payment import Payment
from dpilot.train.step import Released, StepContext, private_step


@dataclass(slots=True)
class TrainingState:
    """Where a run stands. Everything in it was declared or released: it may be stored and shown.

    ``rates`` are the optimizer's own step sizes, which the schedule multiplies; ``mean`` is the average of ``averaged``
    iterates so far.
    """

    context: StepContext
    options: Options
    state: State
    rates: list[float]
    records: list[StepRecord] = field(default_factory=list)
    validation: list[ValidationRecord] = field(default_factory=list)
    mean: dict[str, Tensor] = field(default_factory=dict)
    averaged: int = 0

    @property
    def steps_taken(self) -> int:
        """How many steps were taken."""
        return len(self.records)

    def step(self, chain: Chain, chunks: Iterable[Any]) -> StepRecord:
        """Take the next step on the chunks of its batch, with the step's own randomness, and note what it used."""
        before, place = self.state, self.steps_taken
        self._set_rates(place)
        with step_randomness(chain):
            self.state, released = private_step(self.context, before, chunks)
        record = record_step(place, before, released)
        if not before.frozen:
            self._average(place)
        self.records.append(record)
        return record

    def finish(self) -> None:
        """What is free once the last step was taken: a step along the momentum, and the average as the model."""
        if self.options.free_step:
            free_step(self.context.optimizer)
        options.write_average(self.mean, self.context.model)

    def _set_rates(self, place: int) -> None:
        factor = self.options.schedule.factor(place, self.context.plan.steps)
        for group, rate in zip(self.context.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor

    def _average(self, place: int) -> None:
        kind = self.options.average
        if kind is not None and kind.counts(place, self.context.plan.steps):
            self.mean = options.mix(self.mean, self.context.model, kind.keep(self.averaged))
            self.averaged += 1


def record_step(place: int, used: State, released: Released) -> StepRecord:
    """What is kept of a step: the clip state that it used, layer by layer, and what it released."""
    own = used
    while own.inner is not None:
        own = own.inner
    layers = (_numbers(own.threshold), _numbers(own.bound)) if own.threshold.dim() else ((), ())
    memory = () if own.memory is None else _numbers(own.memory)
    plain = place, float(used.threshold), float(used.bound), used.frozen
    waits = not released.extras.numel() and released.length.device.type != "cpu"  # for the device, with nothing to read
    length = None if waits else float(released.length)
    return StepRecord(*plain, _numbers(released.extras), *layers, memory, length)


def _numbers(values: Tensor) -> tuple[float, ...]:
    return tuple(values.detach().float().flatten().tolist())


def record_of(state: TrainingState, paid: Payment, stamp: str) -> RunRecord:
    """What a run released so far, and what it costs."""
    cost, plan = paid.cost, state.context.plan
    return RunRecord(
        plan=plan.to_dict(),
        epsilon=cost.epsilon,
        delta=cost.delta,
        steps=tuple(state.records),
        stamps=(stamp, PUBLIC_VALIDATION) if state.validation else (stamp,),
        notes=(payment.note(plan, paid),),
        options=state.options.to_dict(),
        validation=tuple(state.validation),
    )


@contextmanager
def step_randomness(chain: Chain) -> Iterator[None]:
    """Seed torch, numpy and random from this position of the chain, and put back what was there when it ends.

    Guarantee:
        A resumed step draws what the first one drew. Nothing needs to be stored for it: the position of a global
        generator would tell how many records a batch had.
    """
    seeds = chain.generator("model").integers(2**32, size=3)
    before = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=cuda_devices()):
            _seed_torch(int(seeds[0]))
            np.random.seed(int(seeds[1]))
            random.seed(int(seeds[2]))
            yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def _seed_torch(seed: int) -> None:
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes longer than a small step
    if cuda_devices():
        torch.cuda.manual_seed_all(seed)


def cuda_devices() -> list[int]:
    """The CUDA devices whose generators a step may move; none in a process that never used one."""
    started = bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
    return list(range(torch.cuda.device_count())) if started else []
