"""A DP-SGD loop for looking at clipping rules: seeded noise, no ledger, NO PRIVACY CLAIM."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from benchmarks.clipping.tasks import Task
from dpilot.clipping import Clipping, State

SIGMA = 1.0


@dataclass(frozen=True, slots=True)
class Gradients:
    """Per-sample gradients of one batch, flattened: (n, d)."""

    rows: Tensor

    def norms(self) -> Tensor:
        return torch.linalg.vector_norm(self.rows, dim=1)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return weights @ self.rows


def per_sample(task: Task) -> Callable[[dict[str, Tensor], Tensor], Gradients]:
    """Gradients of every record at given row numbers, by vmap."""

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        outputs = functional_call(task.model, parameters, (x.unsqueeze(0),))
        return torch.nn.functional.cross_entropy(outputs, y.unsqueeze(0))

    each = vmap(grad(loss), in_dims=(None, 0, 0))

    def gradients(parameters: dict[str, Tensor], rows: Tensor) -> Gradients:
        found = each(parameters, task.inputs[rows], task.labels[rows])
        return Gradients(torch.cat([part.flatten(1) for part in found.values()], 1))

    return gradients


class Simulation:
    """One run of a rule on a task, step by step; every run of a task sees the same batches."""

    def __init__(self, task: Task, rule: Clipping) -> None:
        self.task, self.rule = task, rule
        self.parameters = {name: value.detach().clone() for name, value in task.model.named_parameters()}
        self.dimension = sum(value.numel() for value in self.parameters.values())
        self.gradients = per_sample(task)
        self.generator = torch.Generator().manual_seed(0)
        self.state = rule.init(
            noise_multiplier=SIGMA, expected_batch_size=task.batch_size, dimension=self.dimension, steps=task.steps
        )

    def batch(self) -> Tensor:
        rate = self.task.batch_size / len(self.task.inputs)
        draws = torch.rand(len(self.task.inputs), generator=self.generator, dtype=torch.float64)
        return torch.nonzero(draws < rate).squeeze(1)

    def step(self) -> State:
        """One private-looking step; what it releases is stamped nowhere and must be trusted nowhere."""
        found = self.gradients(self.parameters, self.batch())
        weights, extras = self.rule.clip(found.norms(), self.state)
        vector = torch.cat([found.weighted_sum(weights), extras.sum(0)])
        noise = SIGMA * float(self.state.bound) * torch.randn(len(vector), generator=self.generator)
        released = vector + noise
        if not self.state.frozen:
            self._move(released[: self.dimension] / self.task.batch_size)
        self.state = self.rule.update(self.state, released[self.dimension :])
        return self.state

    def _move(self, gradient: Tensor) -> None:
        first = 0
        for value in self.parameters.values():
            value -= self.task.step_size * gradient[first : first + value.numel()].view_as(value)
            first += value.numel()


def trajectory(task: Task, rule: Clipping) -> list[float]:
    """The threshold before the first step and after each step."""
    run = Simulation(task, rule)
    return [float(run.state.threshold), *(float(run.step().threshold) for _ in range(task.steps))]


def seconds(work: Callable[[], object], repeats: int) -> float:
    """The median processor time of ``work``, which other work on the machine does not stretch as it does wall time."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return statistics.median(times)


def step_seconds(task: Task, rule: Clipping, repeats: int) -> float:
    """The median time of a whole step under a rule."""
    run = Simulation(task, rule)
    run.step()
    return seconds(run.step, repeats)


def rule_seconds(task: Task, rule: Clipping, repeats: int) -> float:
    """The median time of the rule alone: clip, the sum of its extras, update."""
    run = Simulation(task, rule)
    while run.state.frozen:  # one-shot: what it costs once it clips
        run.step()
    norms = run.gradients(run.parameters, run.batch()).norms()

    def work() -> None:
        _, extras = rule.clip(norms, run.state)
        rule.update(run.state, extras.sum(0))

    work()
    return seconds(work, repeats)
