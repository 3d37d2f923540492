"""Trials of small modules, step by step together: one vmapped pass over stacked parameters for the union of batches.

Every trial keeps batches, noise, receipt, clip state and optimizer of its own; only the gradients of the records are
computed together. A record of the union counts for the trials in whose batch it is, and is nothing to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import TensorDataset

from dpilot._quiet import try_quietly
from dpilot.engine import PerSample
from dpilot.engine.base import accumulator, empty, no_batching_warnings, trainable
from dpilot.engine.generators import GeneratorStates
from dpilot.engine.isolate.loop import hold_gradients
from dpilot.engine.isolate.vmap import BatchLoss, refuse_leaks
from dpilot.engine.state import StateSnapshot, preserve
from dpilot.sampling import Batch, PoissonSampler
from dpilot.train import dry_run
from dpilot.train.batches.reader import RecordChunk, declared_form, move_to, split_records
from dpilot.train.gradients import concatenate_handles, even_rows, null_outside_classes
from dpilot.train.randomness import fork_generators, step_randomness
from dpilot.train.step import TrainingState

__all__ = ["Runner", "runs_stacked", "stackable", "train_together"]


@dataclass(slots=True)
class Runner:
    """One trial under way: its state, its sampler, and how its gradients are had alone."""

    state: TrainingState
    sampler: PoissonSampler
    alone: Callable[[Any], PerSample]

    @classmethod
    def of(cls, state: TrainingState, sampler: PoissonSampler) -> Runner:
        alone = state.context.per_sample
        state.context = replace(state.context, per_sample=_identity)
        return cls(state, sampler, alone)

    @property
    def model(self) -> nn.Module:
        return self.state.context.model


def stackable(model: nn.Module, dataset: Any, options: Mapping[str, Any], *, trials: int, batch_size: float) -> bool:
    """Whether trials of ``model`` can go together, by declared numbers: small, no buffers, records (x, y) in tensors.

    >>> data = TensorDataset(torch.zeros(3, 2), torch.zeros(3, dtype=torch.long))
    >>> stackable(nn.Linear(2, 2), data, {}, trials=3, batch_size=100.0)
    True
    >>> stackable(nn.Linear(2, 2), [1, 2], {}, trials=3, batch_size=100.0)
    False
    """
    size = sum(each.numel() for each in model.parameters())
    most_numbers = 1 << 26  # of gradients, held for one step of all trials
    small = size <= 100_000 and trials**2 * batch_size * size <= most_numbers
    plain = not any(options.get(name) for name in ("per_batch", "amp", "low_memory", "groups"))
    same = len(trainable(model)) == len(list(model.parameters())) and not list(model.buffers())
    paired = type(dataset) is TensorDataset and len(dataset.tensors) == 2
    return small and plain and same and paired and options.get("engine", "auto") == "auto"


def train_together(
    runners: Sequence[Runner], dataset: TensorDataset, loss_fn: Callable[..., Tensor], device: torch.device
) -> None:
    """All steps of all trials; those that are done drop out.

    Guarantee:
        At each step each trial claims a batch of its own sampler, and its released sum is over that batch alone.
    """
    going, loss_fn = list(runners), null_outside_classes(loss_fn, device)
    while going:
        issued = [(runner, runner.sampler.state, runner.sampler.issue(len(dataset))) for runner in going]
        for runner, _, batch in issued:
            runner.sampler.claim(batch)
        with step_randomness(issued[0][1]):
            pieces = list(_gradients(going, [batch for *_, batch in issued], dataset, loss_fn, device))
        for place, (runner, chain, _) in enumerate(issued):
            runner.state.step(chain, (piece[place] for piece in pieces))
        going = [runner for runner in going if runner.state.steps_taken < runner.sampler.steps]


def runs_stacked(model: nn.Module, loss_fn: Callable[..., Tensor], dataset: Any, device: torch.device) -> bool:
    """Whether made-up records compute together, and the model sees no more than one of them (``vmap_leaks``)."""
    form = move_to(device, declared_form(dataset, None))
    made_up = dry_run.synthetic_records(form, 2, per_batch=False)
    with fork_generators():
        return try_quietly(partial(_stack_gradients, [model, model], loss_fn, made_up)) is not None


def _gradients(
    runners: Sequence[Runner],
    issued: Sequence[Batch],
    dataset: TensorDataset,
    loss_fn: Callable[..., Tensor],
    device: torch.device,
) -> Iterator[list[PerSample]]:
    """For each piece of the union the gradients of each trial's own records in it.

    Guarantee:
        A piece has a public number of rows, filled up with copies of its last record. One that does not compute, or in
        which the model may have seen more than one record, is computed again, each record as a piece of copies of
        itself, with the same draws: a record that is the cause moves nothing but itself. In random order one record
        more takes the place of at most one other, as in ``sampling.scatter``.
    """
    union = np.unique(np.concatenate([batch.indices for batch in issued]))
    models, size = [runner.model for runner in runners], _piece_rows(runners)
    for places in issued[0].scatter(union.size, size):
        indices = union[places]
        masks = [np.isin(indices, batch.indices) for batch in issued]
        filled = torch.from_numpy(np.pad(indices, (0, size - len(indices)), mode="edge"))
        rows = tuple(each.to(device).contiguous() for each in dataset[filled])  # as copies of a record lie
        before, computed = GeneratorStates.now(), np.ones(len(indices), dtype=np.bool_)
        gradients = try_quietly(partial(_stack_gradients, models, loss_fn, rows))
        if gradients is None:
            gradients, computed = _stack_copies(models, loss_fn, rows, len(indices), before)
        yield [
            concatenate_handles(
                [
                    _select_records(runner, gradients, place, mask[computed]),
                    *(_compute_alone(runner, rows, i) for i in np.flatnonzero(mask & ~computed).tolist()),
                ]
            )
            for place, (runner, mask) in enumerate(zip(runners, masks, strict=True))
        ]


def _piece_rows(runners: Sequence[Runner], most_numbers: int = 1 << 24) -> int:
    """Rows of a piece, which most unions of batches fill well, with at most ``most_numbers`` in gradients: public."""
    plan = runners[0].state.context.plan
    most = max(1, most_numbers // (len(runners) * sum(each.numel() for each in runners[0].model.parameters())))
    in_union = 1 - (1 - plan.sample_rate) ** len(runners)
    return even_rows(plan.expected_batch_size / plan.sample_rate * in_union, in_union, most)


def _stack_gradients(
    models: Sequence[nn.Module], loss_fn: Callable[..., Tensor], rows: tuple[Tensor, ...]
) -> dict[str, Tensor]:
    """Gradients by name, (trials, records, ...)."""
    whole = BatchLoss(models[0], loss_fn, False)
    every = [trainable(model) for model in models]
    values = {f"model.{name}": torch.stack([each[name].detach() for each in every]) for name in every[0]}

    def loss(parameters: dict[str, Tensor], *sample: Tensor) -> Tensor:
        result: Tensor = functional_call(whole, parameters, (tuple(each.unsqueeze(0) for each in sample),))
        return result

    per_record = vmap(grad(loss), in_dims=(None, *[0] * len(rows)), randomness="different")
    before = StateSnapshot.of(models[0], loss_fn, rows)
    with preserve(before), no_batching_warnings(), refuse_leaks(before.generators):
        return vmap(per_record, in_dims=(0, *[None] * len(rows)), randomness="different")(values, *rows)  # type: ignore[no-any-return]


def _stack_copies(
    models: Sequence[nn.Module],
    loss_fn: Callable[..., Tensor],
    rows: tuple[Tensor, ...],
    n: int,
    before: GeneratorStates,
) -> tuple[dict[str, Tensor], NDArray[np.bool_]]:
    """The first n records, each among copies of itself: gradients of those that compute, and which do."""
    found = list[dict[str, Tensor]]()
    computed = np.zeros(n, dtype=np.bool_)
    for i in range(n):
        before.go_on()
        copies = tuple(each[i : i + 1].repeat(len(each), *[1] * (each.dim() - 1)) for each in rows)
        gradients = try_quietly(partial(_stack_gradients, models, loss_fn, copies))
        if gradients is not None:
            computed[i] = True
            found.append({name: each[:, i].clone() for name, each in gradients.items()})
    return {name: torch.stack([each[name] for each in found], 1) for name in (found[0] if found else ())}, computed


def _select_records(runner: Runner, stacked: dict[str, Tensor], place: int, mask: NDArray[np.bool_]) -> PerSample:
    """The gradients of one trial's own records."""
    kept = torch.from_numpy(np.flatnonzero(mask))
    if not len(kept):
        return empty(trainable(runner.model), "vmap", "trials together")
    gradients = {
        name.removeprefix("model."): each[place][kept.to(each.device)].detach() for name, each in stacked.items()
    }
    return hold_gradients(
        "vmap", "trials together", {name: each.to(accumulator(each)) for name, each in gradients.items()}
    )


def _compute_alone(runner: Runner, rows: tuple[Tensor, ...], place: int) -> PerSample:
    """One record by the engine, for one trial."""
    mine = tuple(each[place : place + 1] for each in rows)
    return runner.alone(RecordChunk(mine, partial(split_records, mine, 1), 1))


def _identity(handle: PerSample) -> PerSample:
    """The gradients were computed already."""
    return handle
