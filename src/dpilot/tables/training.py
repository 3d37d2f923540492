"""The private run of a table: its model, a data-free step size, and the planned steps on the training part."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dpilot import _validate, clipping
from dpilot.data.encoder import Encoded
from dpilot.privacy.budget import Cost
from dpilot.privacy.ledger import Committed
from dpilot.tables.declaration import MODELS, PARTS, FitDeclaration
from dpilot.tables.expansion import Expansion
from dpilot.tables.planning import TRAINING, TablePlan
from dpilot.train.plan import Plan
from dpilot.train.progress import Progress
from dpilot.train.run import Run
from dpilot.train.trainer import Trainer

__all__ = ["Ready", "StepNumbers", "build", "data_free_step", "dataset_of", "loss_of", "ready", "train"]


def build(model: str, inputs: int, outputs: int, hidden: int = 32) -> nn.Module:
    """A fresh model; its first weights depend on no record. The last layer starts at zero.

    >>> build("logistic", 3, 2)
    Linear(in_features=3, out_features=2, bias=True)
    """
    _validate.one_of(MODELS, model=model)
    last = nn.Linear(inputs if model == "logistic" else hidden, outputs)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return last if model == "logistic" else nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), last)


class _Squared(nn.Module):
    """Half the squared error of one output."""

    reduction: Final = "none"

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return (output[:, 0] - target).square() / 2


def loss_of(*, numeric_target: bool) -> nn.Module:
    """One loss a record."""
    return _Squared() if numeric_target else nn.CrossEntropyLoss(reduction="none")


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """What may decide the step size: the plan's numbers, the number of parameters, and the target's kind.

    ``mean_square`` is about the squared length of a row of features, by declaration.
    """

    batch_size: float
    steps: int
    noise_multiplier: float
    parameters: int
    mean_square: float
    numeric_target: bool


def data_free_step(numbers: StepNumbers) -> float:
    """The step with which the noise alone would carry the parameters a distance of 4, in a run of constant steps.

    ::

        lr = min(4 B / (sigma sqrt(p T)), 16)

    for gradients in units of the clipping threshold: T steps of noise sigma / B in each of p coordinates make a random
    walk of length lr sigma sqrt(p T) / B. A logistic model of a table has weights of length 3 to 12, so a walk of about
    that length still leaves the signal; the cosine that ends the run takes most of the walk back.

    Edge cases:
        numeric target        a squared loss has curvature everywhere, so lr is at most 1 / (mean squared row)

    Example:
        >>> numbers = StepNumbers(1024, 400, 2.0, 240, 12.0, numeric_target=False)
        >>> round(data_free_step(numbers), 3)
        6.61

    Reference:
        4 and 16 were chosen on bank marketing, credit default, law school and the Dutch census at epsilon 0.3, 1, 4.
    """
    noise = numbers.noise_multiplier * math.sqrt(numbers.parameters * numbers.steps) / numbers.batch_size
    lr = min(4.0 / noise, 16.0)
    return min(lr, 1 / numbers.mean_square) if numbers.numeric_target else lr


@dataclass(frozen=True, slots=True)
class Ready:
    """A model that could be trained: fresh, with its plan and the numbers its step size may follow from."""

    model: nn.Module
    plan: Plan
    numbers: StepNumbers


def ready(declared: FitDeclaration, plan: TablePlan, expansion: Expansion, size: float) -> Ready:
    """A fresh model and the plan of its run; ``size`` is declared or was bought, never counted in secret."""
    model = build(declared.model, expansion.width, declared.task.outputs)
    budget = declared.budget
    steps = Plan(
        budget=budget,
        size=max(1, round(size * (1 - declared.held_out))),
        sample_rate=plan.sample_rate,
        steps=plan.steps,
        noise_multiplier=plan.training_noise,
        clipping=clipping.get("bounded-slack", normalized=True),
        cost=Cost(budget.epsilon, budget.delta),
    )
    numbers = StepNumbers(
        batch_size=steps.expected_batch_size,
        steps=steps.steps,
        noise_multiplier=steps.noise_multiplier,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        mean_square=expansion.mean_square,
        numeric_target=declared.task.numeric,
    )
    return Ready(model, steps, numbers)


def train(
    prepared: Ready,
    records: Encoded,
    lr: float,
    *,
    committed: Committed,
    split: str,
    numeric_target: bool,
    device: str | None = None,
    progress: Progress | None = None,
    test_seed: int | None = None,
) -> Run:
    """Take the planned steps on the training part; they were paid with the commitment."""
    trainer = Trainer(
        prepared.model,
        loss_of(numeric_target=numeric_target),
        prepared.plan,
        lr=lr,
        schedule="cosine",
        ledger=committed,
        purpose=TRAINING,
        part=PARTS[0],
        split=split,
        device=device,
        progress=progress,
        test_seed=test_seed,
    )
    return trainer.fit(dataset_of(records, numeric_target=numeric_target))


def dataset_of(records: Encoded, *, numeric_target: bool) -> TensorDataset:
    """The records as tensors, a null record before them: so that the part is never empty, whoever is in it."""
    width = records.features.shape[1]
    features = np.concatenate([np.full((1, width), np.nan, dtype=np.float32), records.features])
    target = np.nan_to_num(np.concatenate([[0.0], records.target if records.target is not None else []]), nan=0.0)
    kind = torch.float32 if numeric_target else torch.long
    return TensorDataset(torch.from_numpy(features), torch.from_numpy(target).to(kind))
