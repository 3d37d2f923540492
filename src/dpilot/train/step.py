"""A run under way: the private step, the picture in the architecture top to bottom, and what is free around it.

What is sensitive stays inside ``private_sum``; everything after it was released.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, Final, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpilot import engine
from dpilot._arrays import Indices
from dpilot._quiet import keep_quiet
from dpilot.clipping import State, update_from_release
from dpilot.engine.base import empty as no_gradients
from dpilot.engine.base import trainable
from dpilot.hardened import grid_size
from dpilot.keys import Chain
from dpilot.mechanism import Draws, Noise
from dpilot.numerics.grid import LOST, Grid
from dpilot.private_sum import Clip, PerSampleGradients, private_sum
from dpilot.records import PUBLIC_VALIDATION, AuditRecord, RunRecord, StepRecord, ValidationRecord
from dpilot.train import options, payment
from dpilot.train.batches.reader import RecordChunk
from dpilot.train.optimizers import free_step
from dpilot.train.options import Options
from dpilot.train.payment import PaidElsewhere, Payment
from dpilot.train.plan import Plan
from dpilot.train.randomness import step_randomness
from dpilot.train.sums import Both, FloatSums, Gradients, Sums, sum_types

NO_CANARIES: Final[Indices] = np.zeros(0, dtype=np.int64)


class Planted(Protocol):
    """The canaries of a run under way."""

    @property
    def included(self) -> NDArray[np.bool_]: ...

    def chunks(self, numbers: Indices, size: int) -> Iterable[RecordChunk]:
        """Canaries of a batch that are records, in chunks of at most ``size``; numbers count the included ones."""
        ...

    def gradients(self, numbers: Indices, state: State) -> Iterable[engine.PerSample]:
        """Canaries of a batch that are gradients."""
        ...

    def observe(self, released: Mapping[str, Tensor], state: State) -> None:
        """See the noisy sum of a step, as everybody may."""
        ...

    def record(self) -> AuditRecord:
        """Coins and scores of the finished run."""
        ...


@dataclass(frozen=True, slots=True)
class StepContext:
    """What stays the same through a run: the plan, the model, how gradients are had, and what pays and adds noise.

    ``clip`` is the plan's own rule where that is replayed; ``sums`` says who adds up and releases; ``hardened`` rounds
    what each record adds to the grid of the noise.
    """

    plan: Plan
    model: nn.Module
    per_sample: Callable[[Any], engine.PerSample]
    optimizer: torch.optim.Optimizer
    noise: Noise
    receipt: Draws
    groups: Sequence[Sequence[str]] | None = None
    clip: Clip | None = None
    sums: Sums = field(default_factory=FloatSums)
    canaries: Planted | None = None
    hardened: bool = False


@dataclass(frozen=True, slots=True)
class Released:
    """What a step released beside the direction it moved in: the noisy extras, and the length of the noisy sum."""

    extras: Tensor
    length: Tensor


def private_step(
    context: StepContext, state: State, chunks: Iterable[Any], planted: Indices = NO_CANARIES
) -> tuple[State, Released]:
    """Clip, sum, release, and move the model along the noisy mean; the next step's clip state, and what was released.

    ``chunks`` are the physical pieces of one Poisson batch of the plan; of an empty batch there are none, and the
    step is noise alone. The state used is the one from before the step, for every chunk. ``planted`` are the canaries
    of the batch, of an audited run.

    Guarantee:
        That of ``private_sum``: the receipt is that of plain DP-SGD, whatever the rule. The divisor is the plan's
        expected batch size.
    """
    plan, groups = context.plan, context.groups
    parameters, batch_size = context.sums.trained(context.model), plan.expected_batch_size
    grid = grid_of(plan, state, len(parameters)) if context.hardened else None
    kinds, sums = sum_types(parameters, math.inf if context.hardened else batch_size), context.sums
    canaries = () if context.canaries is None else context.canaries.gradients(planted, state)
    with keep_quiet(), sums.whole():
        nothing = no_gradients(trainable(context.model), "none", "no records")
        found = (nothing if each is None else context.per_sample(each) for each in sums.rounds(chunks))
        released, extras = private_sum(
            (sums.piece(_ChunkGradients(each, groups, kinds, grid)) for each in chain(found, canaries)),
            _widen_extras(context.clip or plan.clipping.clip, kinds, grid),
            state,
            empty=sums.piece(_ChunkGradients(nothing, groups, kinds, grid)),
            noise_multiplier=plan.noise_multiplier,
            sample_rate=plan.sample_rate,
            receipt=context.receipt,
            noise=context.noise,
            add=_add,
            door=sums.release if grid is None else partial(_release_on_grid, sums, grid),
        )
    if context.canaries is not None:
        context.canaries.observe(released, state)
    length = sums.length(released)
    _move(parameters, context.optimizer, released, batch_size, sums, frozen=state.frozen)
    return update_from_release(plan.clipping, state, extras, length), Released(extras, length)


def grid_of(plan: Plan, state: State, parameters: int) -> Grid:
    """The grid to which records are rounded in a step: that of its noise, and room for 16 times the expected batch."""
    bound, records = float(state.bound), 4096 + math.ceil(16 * plan.expected_batch_size)
    return Grid(grid_size(bound * (1 + LOST), plan.noise_multiplier), bound, parameters, records)


def _release_on_grid(sums: Sums, grid: Grid, total: Both, **terms: Any) -> Both:
    """Release sums of rounded records: factors of products may have made each longer, by ``LOST`` of the bound."""
    return sums.release(total, **{**terms, "bound": grid.bound * (1 + LOST)})


def initial_state(plan: Plan, model: nn.Module, device: torch.device | str | None = None) -> State:
    """The clip state before the first step, from the plan and the number of trained real numbers."""
    return plan.clipping.init(
        noise_multiplier=plan.noise_multiplier,
        expected_batch_size=plan.expected_batch_size,
        dimension=count_trained(model),
        steps=plan.steps,
        device=device,
    )


def count_trained(model: nn.Module) -> int:
    """How many real numbers are trained."""
    trained = (parameter for parameter in model.parameters() if parameter.requires_grad)
    return sum(parameter.numel() * (2 if parameter.is_complex() else 1) for parameter in trained)


@final
@dataclass(frozen=True, slots=True)
class _ChunkGradients(PerSampleGradients):
    """The gradients of one chunk, in the groups of the run, summed in the precision in which they are released.

    On a ``grid`` what each record adds is rounded by itself, and sums in float64 are exact, whatever their order.
    """

    gradients: engine.PerSample
    groups: Sequence[Sequence[str]] | None
    kinds: Mapping[str, torch.dtype]
    grid: Grid | None

    @property
    def norms(self) -> Tensor:
        return self.gradients.norms if self.groups is None else self.gradients.group_norms(self.groups)

    def weighted_sum(self, weights: Tensor, names: Collection[str] | None = None) -> Gradients:
        """The sums as they are released: a complex one as its real and imaginary parts, the coordinates that the norm
        and the noise are about."""
        sums = self.gradients.weighted_sum(weights, self.groups, names=names, grid=self.grid)
        wanted = self.kinds if names is None else {name: self.kinds[name] for name in self.kinds if name in names}
        return {name: _real(sums[name]).to(kind) for name, kind in wanted.items()}


def _widen_extras(rule: Clip, kinds: Mapping[str, torch.dtype], grid: Grid | None) -> Clip:
    """The rule, its extras in the precision of the sums, and on their grid."""
    kind = next(iter(kinds.values()))

    def clip(norms: Tensor, state: State) -> tuple[Tensor, Tensor]:
        weights, extras = rule(norms, state)
        return weights, extras.to(kind) if grid is None else grid.round(extras)

    return clip


def _add(total: Gradients, more: Gradients, *, own: bool) -> Gradients:
    """One chunk's sums and another's; in place where the total is this step's ``own`` memory, not the engine's."""
    left, right = list(total.values()), list(more.values())
    if own:
        torch._foreach_add_(left, right)
        return total
    return dict(zip(total, torch._foreach_add(left, right), strict=True))


def _move(
    parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer, released: Gradients, batch_size: float,
    sums: Sums, *, frozen: bool,
) -> None:  # fmt: skip
    """Hand the noisy mean to the optimizer. While a rule only measures, the optimizer does not move."""
    means = dict(zip(released, torch._foreach_div(list(released.values()), batch_size), strict=True))
    for parameter, mean in zip(parameters.values(), sums.gradients(means), strict=True):
        parameter.grad = (torch.view_as_complex(mean) if parameter.is_complex() else mean).to(parameter.dtype)
    if not frozen:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _real(gradient: Tensor) -> Tensor:
    """The gradient as real numbers: of a complex one, its real and imaginary parts along a last axis of two."""
    return torch.view_as_real(gradient.resolve_conj()) if gradient.is_complex() else gradient


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

    def plant(self, canaries: Planted) -> None:
        """Audit the run by these canaries, from its first step on."""
        self.context = replace(self.context, canaries=canaries)

    @property
    def steps_taken(self) -> int:
        """How many steps were taken."""
        return len(self.records)

    def step(self, key: Chain, chunks: Iterable[Any], planted: Indices = NO_CANARIES) -> StepRecord:
        """Take the next step on the chunks of its batch, with the step's own randomness, and note what it used."""
        before, place = self.state, self.steps_taken
        self._set_rates(place)
        with step_randomness(key):
            self.state, released = private_step(self.context, before, chunks, planted)
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


def record_of(state: TrainingState, paid: Payment | PaidElsewhere, stamp: str) -> RunRecord:
    """What a run released so far, and what it costs."""
    cost, plan, audited = paid.cost, state.context.plan, state.context.canaries
    return RunRecord(
        plan=plan.to_dict(),
        epsilon=cost.epsilon,
        delta=cost.delta,
        steps=tuple(state.records),
        stamps=(stamp, PUBLIC_VALIDATION) if state.validation else (stamp,),
        notes=(payment.note(plan, paid),),
        options={**state.options.to_dict(), "parameters": count_trained(state.context.model)},
        validation=tuple(state.validation),
        audit=None if audited is None else audited.record(),
    )
