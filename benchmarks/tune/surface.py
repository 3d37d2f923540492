"""Accuracy as a function of what a run of a linear head is given, and a task that looks it up.

A full-batch run depends on its budget and the number of records through m = mu n alone (noise beside signal), and on
how far it walks, r = lr steps. So one surface (m, r) a data set answers for every budget, share and number of trials.

A simulation: noise of the GPU's generator, no ledger and no privacy claim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpilot.mechanism import Draws
from dpilot.numerics import precision
from dpilot.transfer.features import Features
from dpilot.transfer.head_gradients import FeatureBlocks, residual_limits
from dpilot.tune.task import Trial

Floats = NDArray[np.float64]
MOMENTUM = 0.9


@dataclass(frozen=True, slots=True)
class Recipe:
    """How r is split: at least ``few`` and at most ``many`` steps, and a step size of ``cap`` if these allow it."""

    cap: float
    few: int = 100
    many: int = 400

    def steps(self, r: float) -> int:
        return min(max(math.ceil(r / self.cap), self.few), self.many)


@dataclass(frozen=True, slots=True, eq=False)
class Surface:
    """Shares of right answers for each (m, r / m, seed): on test records, and on nested held-out sets by their size."""

    classes: int
    signals: Floats
    ratios: Floats
    test: Floats
    held_out: dict[int, Floats]


def measure(
    train: Features,
    test: Features,
    recipe: Recipe,
    signals: Sequence[float],
    ratios: Sequence[float],
    *,
    seeds: int = 3,
    sizes: Sequence[int] = (),
) -> Surface:
    """Fit every cell of the grid at once on four fifths of ``train``; the last fifth is held out."""
    kept = round(0.8 * len(train))
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(1)).to(train.values.device)
    fitted, held = train.take(order[:kept]), train.take(order[kept:])
    cells = [(m, m * ratio) for m in signals for ratio in ratios for _ in range(seeds)]
    weights = _walk(fitted, recipe, cells)
    shape = (len(signals), len(ratios), seeds)
    sizes = [size for size in sizes if size <= len(held)] or [len(held)]
    right = _right(held, weights)
    return Surface(
        train.classes,
        np.array(signals),
        np.array(ratios),
        _right(test, weights).mean(1).cpu().numpy().reshape(shape),
        {size: right[:, :size].mean(1).cpu().numpy().reshape(shape) for size in sizes},
    )


def _walk(features: Features, recipe: Recipe, cells: Sequence[tuple[float, float]]) -> Tensor:
    """Weights (cells, classes, d) after each cell's own number of steps and the free one."""
    records, device = FeatureBlocks.of(features, size=len(features)), features.values.device
    steps = torch.tensor([recipe.steps(r) for _, r in cells], device=device)
    lr = torch.tensor([r for _, r in cells], dtype=torch.float32, device=device).div(steps)[:, None, None]
    scale = (steps.sqrt() / torch.tensor([m for m, _ in cells], dtype=torch.float32, device=device))[
        :, None, None
    ]  # sigma / n
    weights = torch.zeros(len(cells), records.classes, features.width, device=device)
    velocity, final = torch.zeros_like(weights), torch.zeros_like(weights)
    limits = residual_limits(records.lengths, torch.ones(len(cells), device=device), records.classes, records.grade)
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad(), precision.use_grade(records.grade):
        for step in range(1, int(steps.max()) + 1):
            noise = torch.randn(weights.shape, device=device, generator=generator)
            mean = (records.clip_and_sum(weights, limits) / len(features)).to(weights.dtype)
            velocity = MOMENTUM * velocity + mean + scale * noise
            weights = weights - lr * velocity
            done = (steps == step)[:, None, None]
            final = torch.where(done, weights - lr * MOMENTUM * velocity, final)
    return final


def _right(features: Features, weights: Tensor, rows: int = 1000) -> Tensor:
    """Whether each cell's head is right about each record: (cells, n), as float32."""
    found = [
        (torch.einsum("nd,hcd->hnc", features.values[start : start + rows], weights).argmax(2)
         == features.labels[start : start + rows]).float()
        for start in range(0, len(features), rows)
    ]  # fmt: skip
    return torch.cat(found, 1)


@dataclass(frozen=True, slots=True, eq=False)
class SurfaceTask:
    """A task for tuners whose runs are looked up; a model is (share right among held-out records, among test records).

    ``size`` records to train on and ``held_out_size`` to score on are declared, as if the data had so many.
    """

    surface: Surface
    size: float
    held_out_size: float
    generator: np.random.Generator
    sample_rate: float = field(default=1.0, init=False)
    split: str | None = field(default=None, init=False)
    stamp: str = field(default="a simulation: not private", init=False)

    def cells(self, objective: str) -> int:
        del objective
        return 1

    def untrained(self) -> tuple[float, float]:
        return (0.0, 0.0)

    def train(self, trials: Sequence[Trial]) -> tuple[tuple[float, float], ...]:
        found = []
        for trial in trials:
            mu = math.sqrt(trial.candidate.steps) / trial.noise_multiplier
            found.append(self.looked_up(mu * self.size, trial.candidate.r))
        return tuple(found)

    def table(
        self, model: tuple[float, float], objective: str, *, noise_multiplier: float, receipt: Draws
    ) -> Floats | None:
        del receipt
        counts = self.exact_table(model, objective)
        return counts + noise_multiplier * self.generator.standard_normal(counts.shape)

    def exact_table(self, model: tuple[float, float], objective: str) -> Floats:
        del objective
        right = model[0] * self.held_out_size
        return np.array([[self.held_out_size - right, right]])

    def looked_up(self, signal: float, r: float, seed: int | None = None) -> tuple[float, float]:
        """Held-out and test shares at (m, r), of one seed, between the four nearest cells (ends are continued)."""
        near = min(self.surface.held_out, key=lambda size: abs(math.log(size / self.held_out_size)))
        seed = int(self.generator.integers(self.surface.test.shape[2])) if seed is None else seed
        tables = (self.surface.held_out[near][..., seed], self.surface.test[..., seed])
        rows = _weights(self.surface.signals, signal)
        # a cell's column is r / m at that cell's own m
        values = []
        for table in tables:
            total = 0.0
            for row, weight in rows:
                for column, part in _weights(self.surface.ratios, r / self.surface.signals[row]):
                    total += weight * part * float(table[row, column])
            values.append(total)
        return values[0], values[1]


def _weights(grid: Floats, value: float) -> list[tuple[int, float]]:
    """Where ``value`` lies on a logarithmic grid: the two places beside it and their weights."""
    place = float(np.interp(math.log(value), np.log(grid), np.arange(len(grid))))
    low = min(int(place), len(grid) - 2)
    return [(low, 1 - (place - low)), (low + 1, place - low)]
