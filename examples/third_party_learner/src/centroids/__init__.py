"""A learner for dpilot: the nearest mean of a class, from one noisy sum.

``dpilot fit table.csv --model centroids``, or ``AutoClassifier(model="centroids")``, where this package is installed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from dpilot import mechanism
from dpilot.data.schema import Schema
from dpilot.errors import InvalidInput
from dpilot.fit.declaration import Declaration
from dpilot.fit.embeddings import encoder_of
from dpilot.fit.expansion import WideRows, features_of
from dpilot.fit.figures import CountFigures
from dpilot.fit.learners.base import PaidRun, Trained, kept_apart
from dpilot.fit.learners.networks import NetworkPredictor
from dpilot.fit.population import TRAIN, Parts
from dpilot.fit.purchases import Purchases
from dpilot.fit.source import RowReader, take
from dpilot.privacy.budget import Budget
from dpilot.privacy.gaussian import gdp_mu
from dpilot.privacy.ledger import Stage

__all__ = ["Centroids"]

SUMS = "class sums"
HELD_OUT = 0.1
ROWS = 1 << 16  # at a time


@dataclass(frozen=True, slots=True)
class Centroids:
    """Rows go to the class whose noisy mean is nearest."""

    gaussian: bool = True

    def purchases(self, declared: Declaration, budget: Budget) -> Purchases:
        return Purchases.plan(declared, budget)

    def plan(self, declared: Declaration, budget: Budget, purchases: Purchases) -> CentroidsPlan:
        if declared.task.numeric:
            raise InvalidInput(
                'the target is numeric, and model="centroids" is for classes: expected a column of them.'
            )
        # 1e-9 more, so that what is bought and released stays below the budget in floats
        noise = (1 + 1e-9) / (gdp_mu(budget) * math.sqrt(1 - purchases.share))
        held_out = HELD_OUT if declared.options.held_out is None else declared.options.held_out
        return CentroidsPlan(declared, noise, held_out, CountFigures(declared.task, noise))


@dataclass(frozen=True, slots=True)
class CentroidsPlan:
    """One Gaussian on the training part."""

    declared: Declaration
    noise_multiplier: float
    held_out: float
    figures: CountFigures

    def stages(self, split: str) -> list[Stage]:
        return [Stage(SUMS, mechanism.gaussian_event(self.noise_multiplier), TRAIN, split)]

    def reader(self, schema: Schema) -> RowReader:
        return encoder_of(schema)

    def train(self, parts: Parts, run: PaidRun) -> Trained:
        """Release the sum of e_c [x, R] over the records, x of class c cut to length R, and divide by its counts.

        Guarantee:
            |[x, R]|^2 <= 2 R^2, and a person's rows enter by their mean, so one unit moves it by R sqrt(2) at most.
        """
        rows, classes = features_of(parts.reader.schema), self.declared.task.outputs
        reach = math.sqrt(rows.mean_square)
        total = np.zeros((classes, rows.width + 1))
        for start in range(0, len(parts.train.features), ROWS):
            part = slice(start, start + ROWS)
            total += _sums(take(parts.train, part), parts.train_weights[part], rows, reach, classes)
        with run.committed.stage(SUMS) as receipt:
            noisy = mechanism.release(
                total,
                bound=reach * math.sqrt(2),
                noise_multiplier=self.noise_multiplier,
                receipt=receipt,
                noise=run.keys.noise.spawn(),
            )
        counts = np.maximum(noisy[:, -1:] / reach, 1.0)
        means = noisy[:, :-1] / counts
        module = nn.Linear(rows.width, classes).double()
        with torch.no_grad():  # nearest mean: |x - m|^2 is least where x m - |m|^2 / 2 is largest
            module.weight.copy_(torch.from_numpy(means))
            module.bias.copy_(torch.from_numpy(-np.square(means).sum(1) / 2))
        return Trained(
            predictor=NetworkPredictor(module, rows, None),
            figures=self.figures,
            plan={"model": "centroids", "noise_multiplier": self.noise_multiplier},
            decisions=(kept_apart(self.held_out), "Model: the nearest of the classes' noisy means."),
        )

    def shorten(self, size: float, rows: int) -> tuple[CentroidsPlan, float]:
        return self, size / rows


def _sums(records: Any, weights: Any, rows: WideRows, reach: float, classes: int) -> Any:
    """[sum x | R sum 1] of each class; a null record has weight 0 and no numbers."""
    wide = np.nan_to_num(np.asarray(rows.widen(records.features), dtype=np.float64))
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    wide *= np.minimum(1.0, reach / np.maximum(lengths, 1e-12)) * (1 - 1e-6)  # shaved by more than rounding adds
    member = np.arange(classes)[:, None] == np.asarray(records.target)
    return (member * np.asarray(weights)) @ np.column_stack([wide, np.full(len(wide), reach)])
