"""The tasks of the goals: unit rows of public features, as they are learned by a linear head."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks import datasets
from benchmarks.transfer import tasks
from dpilot import Budget
from dpilot.transfer.features import Features

DELTA = 1e-5


@dataclass(frozen=True, slots=True)
class Goal:
    """A data set, the features of it, the total epsilon, and the accuracy to be reached with everything paid.

    ``centres`` buys the mean first; ``few`` leaves the other methods out.
    """

    data: str
    features: str
    epsilon: float
    target: float
    centres: bool = False
    few: bool = False

    @property
    def name(self) -> str:
        return f"{self.data}, {self.features}" + (", centred" if self.centres else "")

    @property
    def budget(self) -> Budget:
        return Budget(self.epsilon, DELTA)


GOALS = (
    Goal("cifar-10", "resnet-20", 1.0, 0.715),
    Goal("cifar-10", "resnet-20", 1.0, 0.715, centres=True, few=True),
    Goal("adult", "one-hot", 1.0, 0.0),
    Goal("fashion-mnist", "scattering", 2.7, 0.890, few=True),
    Goal("mnist", "scattering", 2.93, 0.982, few=True),
)
CURVES = (GOALS[0], GOALS[2])


def load(goal: Goal, device: str, size: int | None = None) -> tuple[Features, Features]:
    """Training and test records; kept features are read from the folder that DPILOT_CACHE names, if they are there."""
    if goal.data == "adult":
        return adult_rows(device, size)
    kept = Path(os.environ.get("DPILOT_CACHE", "")) / f"{goal.data}.npz"
    if not kept.is_file():
        return tasks.load(tasks.Task(goal.data, goal.features, (goal.epsilon,)), device, size)
    stored = np.load(kept)
    parts = [
        Features.of(stored[part][:size], stored[f"{part}_labels"][:size], 10).unit().to(device)
        for part in ("train", "test")
    ]
    return parts[0], parts[1]


def adult_rows(device: str, size: int | None = None) -> tuple[Features, Features]:
    """Adult as a linear head reads it: numbers scaled by bounds declared beforehand, one-hot columns, a constant."""
    parts = [datasets.load("adult", part) for part in ("train", "test")]
    names = pd.concat([part.inputs for part in parts])
    columns = pd.get_dummies(names.select_dtypes(exclude="number").astype(str)).columns
    train, test = (
        Features.of(_encoded(part.inputs[:size], columns), part.labels[:size], 2).unit().to(device) for part in parts
    )
    return train, test


_BOUNDS = {
    "age": (0, 100), "fnlwgt": (0, 1_000_000), "education-num": (1, 16),
    "capital-gain": (0, 20_000), "capital-loss": (0, 4_000),
    "hours-per-week": (0, 100),
}  # fmt: skip


def _encoded(frame: pd.DataFrame, columns: pd.Index) -> NDArray[np.float32]:
    numbers = frame.select_dtypes(include="number").astype(np.float64)
    scaled = [np.clip(2 * (numbers[name] - low) / (high - low) - 1, -1, 1)
              for name in numbers for low, high in (_BOUNDS[name],)]  # fmt: skip
    codes = pd.get_dummies(frame.select_dtypes(exclude="number").astype(str)).reindex(columns=columns, fill_value=False)
    return np.column_stack([*scaled, codes.to_numpy(), np.ones(len(frame))]).astype(np.float32)
