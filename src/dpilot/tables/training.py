"""The private run of a table: the planned steps on the training part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpilot import clipping
from dpilot.data.encoder import Encoded
from dpilot.privacy.budget import Cost
from dpilot.privacy.ledger import Committed
from dpilot.tables.declared import PARTS, FitDeclaration
from dpilot.tables.features import Expansion
from dpilot.tables.models import build, loss_of
from dpilot.tables.planning import TRAINING, TablePlan
from dpilot.tables.step_size import StepNumbers
from dpilot.train.plan import Plan
from dpilot.train.progress import Progress
from dpilot.train.run import Run
from dpilot.train.trainer import Trainer

__all__ = ["Ready", "dataset_of", "ready", "train"]


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
        model=declared.model,
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
