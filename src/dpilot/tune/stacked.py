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

from dpilot.engine import PerSample
from dpilot.engine.base import accumulator, empty, no_batching_warnings, trainable
from dpilot.engine.isolate.loop import hold_gradients
from dpilot.engine.isolate.vmap import BatchLoss
from dpilot.sampling import Batch, PoissonSampler
from dpilot.train.gradients import null_outside_classes
from dpilot.train.records.reader import RecordChunk, split_records, try_quietly
from dpilot.train.state import TrainingState, step_randomness

__all__ = ["Runner", "stackable", "train_together"]


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


def _gradients(
    runners: Sequence[Runner],
    issued: Sequence[Batch],
    dataset: TensorDataset,
    loss_fn: Callable[..., Tensor],
    device: torch.device,
    most_numbers: int = 1 << 24,
) -> Iterator[list[PerSample]]:
    """For each piece of the union, of at most ``most_numbers``, the gradients of each trial's own records in it."""
    union = np.unique(np.concatenate([batch.indices for batch in issued]))
    size = max(1, most_numbers // (len(runners) * sum(each.numel() for each in runners[0].model.parameters())))
    for start in range(0, len(union), size):
        indices = union[start : start + size]
        masks = [np.isin(indices, batch.indices) for batch in issued]
        rows = tuple(each.to(device) for each in dataset[torch.from_numpy(indices)])
        models = [runner.model for runner in runners]
        gradients = try_quietly(partial(_stack_gradients, models, loss_fn, rows))
        if gradients is None:  # one record may have broken the pass for all: each trial looks for itself
            yield [_compute_alone(runner, rows, mask) for runner, mask in zip(runners, masks, strict=True)]
        else:
            yield [_select_records(runners[place], gradients, place, mask) for place, mask in enumerate(masks)]


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
    with no_batching_warnings():
        return vmap(per_record, in_dims=(0, *[None] * len(rows)), randomness="different")(values, *rows)  # type: ignore[no-any-return]


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


def _compute_alone(runner: Runner, rows: tuple[Tensor, ...], mask: NDArray[np.bool_]) -> PerSample:
    """The same by the engine, alone."""
    kept = torch.from_numpy(np.flatnonzero(mask))
    if not len(kept):
        return empty(trainable(runner.model), "none", "no record of this trial")
    mine = tuple(each[kept.to(each.device)] for each in rows)
    return runner.alone(RecordChunk(mine, partial(split_records, mine, len(kept))))


def _identity(handle: PerSample) -> PerSample:
    """The gradients were computed already."""
    return handle
