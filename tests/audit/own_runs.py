"""Runs of somebody's own, sound and not, as ``dpilot audit replay`` finds them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpilot import Budget, Plan, Trainer

INPUTS = np.random.default_rng(0).normal(size=(10, 5)).astype(np.float32)
LABELS = np.arange(10) % 3
RECORDS = (INPUTS, LABELS)
PERSONS = (INPUTS, LABELS, np.arange(10) // 2)


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))


def train(data: tuple[Any, ...], **options: Any) -> Any:
    torch.manual_seed(0)
    rows = TensorDataset(*(torch.from_numpy(part) for part in data[:2]))
    plan = Plan.calibrate(Budget(1.0, 1e-5), size=20, batch_size=20, steps=1, clipping="constant")
    return Trainer(Net(), nn.CrossEntropyLoss(reduction="none"), plan, lr=0.1, **options).fit(rows).thresholds


def use_records_twice(data: tuple[Any, ...]) -> Any:
    return train(tuple(np.concatenate([part, part]) for part in data))


def split_persons_by_row(data: tuple[Any, ...]) -> Any:
    return train(data[:2])


def keep_persons_whole(data: tuple[Any, ...]) -> Any:
    return train(data, units=data[2], rows_per_unit=4)
