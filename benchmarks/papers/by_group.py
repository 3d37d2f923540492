"""Thresholds by group (the rule ``Group``), with the library's parts: a Trainer's rules see norms alone.

What stands here for FairDP, which trains a model with noise of its own for each group: here all groups share one
release, so a smaller threshold gets no smaller noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.papers.cell import Cell
from benchmarks.papers.data import Data
from benchmarks.papers.lines import Figures
from benchmarks.papers.models import make
from benchmarks.papers.networks import DELTA, binary_loss, predicted, scores
from dpilot import Budget, clipping, engine, privacy
from dpilot.mechanism import SYSTEM
from dpilot.privacy.events import Gaussian, PoissonSampled, Repeated
from dpilot.privacy.receipt import Receipt
from dpilot.private_sum import PerSampleGradients, private_sum


@dataclass(frozen=True, slots=True)
class Piece(PerSampleGradients):
    """The gradients of a batch as one array: norms, and weighted sums."""

    handle: Any

    @property
    def norms(self) -> Tensor:
        return self.handle.norms

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return torch.cat([each.flatten() for each in self.handle.weighted_sum(weights).values()])


def measure(cell: Cell, settings: dict[str, Any], train: Data, test: Data) -> Figures:
    """SGD of a logistic regression; every record is clipped at its own group's threshold."""
    batch = min(settings["batch"], len(train))
    rate, steps = batch / len(train), settings.get("steps") or round(settings["epochs"] * len(train) / batch)
    budget = Budget(cell.epsilon, DELTA)
    sigma = privacy.noise_multiplier(budget, sample_rate=rate, steps=steps)
    model = make(cell.model, train.inputs, 1)
    shares = torch.bincount(train.groups, minlength=2).double() / len(train)
    how = settings["clipping"]
    rule: Any = clipping.get(
        "group", proportions=tuple(shares.tolist()), **{**how, "thresholds": tuple(how["thresholds"])}
    )
    parameters = list(model.parameters())
    size = sum(each.numel() for each in parameters)
    state = rule.init(noise_multiplier=sigma, expected_batch_size=batch, dimension=size)
    step = Gaussian(sigma) if rate == 1 else PoissonSampled(rate, Gaussian(sigma))
    receipt, coins = Receipt(Repeated(step, steps)), np.random.default_rng(cell.seed)
    for _ in range(steps):
        rows = torch.from_numpy(np.flatnonzero(coins.random(len(train)) < rate))
        codes = train.groups[rows]
        handle = engine.per_sample(model, binary_loss, (train.inputs[rows], train.labels[rows].float()))

        def clip(norms: Tensor, state: Any, codes: Tensor = codes) -> tuple[Tensor, Tensor]:
            return rule.clip(norms, state, codes[: len(norms)])  # type: ignore[no-any-return]

        piece = Piece(handle)
        largest = float(state.threshold)
        total, extras = private_sum(
            [piece], clip, state, empty=piece, noise_multiplier=sigma, receipt=receipt, noise=SYSTEM, sample_rate=rate
        )
        moves = torch.split(total / batch, [each.numel() for each in parameters])
        with torch.no_grad():
            for parameter, move in zip(parameters, moves, strict=True):
                parameter -= settings["lr"] / largest * move.view_as(parameter)
        state = rule.update(state, extras)
    thresholds = [float(each) for each in state.memory[:2]]
    return {**scores(predicted(model, test.inputs, "cpu"), test), "thresholds": thresholds, "epsilon": cell.epsilon}
