"""The two tasks: logistic regression on Adult, a LeNet-style CNN-2 on a tenth of Fashion-MNIST.

The data is prepared for a simulation: scales are taken from the data, which a private run must not do.
"""

from __future__ import annotations

import lzma
import os
from dataclasses import dataclass
from pathlib import Path

import numpy
import pandas
import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Task:
    """A model, its data, and the public numbers of a run on it."""

    name: str
    model: nn.Module
    inputs: Tensor
    labels: Tensor
    batch_size: int
    steps: int
    step_size: float


def folder() -> Path:
    """The folder of data sets, named by the environment alone."""
    if "DPILOT_DATA" not in os.environ:
        raise SystemExit("DPILOT_DATA is not set: expected the folder of the data sets. Skipped.")
    return Path(os.environ["DPILOT_DATA"])


def adult(quick: bool) -> Task:
    table = pandas.read_parquet(folder() / "adult" / "adult.parquet")
    table = table[table["split"] == "train"].drop(columns="split")
    labels = torch.tensor((table.pop("income") == ">50K").to_numpy(), dtype=torch.long)
    columns = pandas.get_dummies(table, dtype="float32").to_numpy(dtype="float32")
    inputs = torch.from_numpy(columns / numpy.abs(columns).max(0))
    torch.manual_seed(0)
    return Task(
        "Adult, logistic regression", nn.Linear(inputs.shape[1], 2), inputs, labels, 512, 20 if quick else 200, 0.5
    )


def fashion(quick: bool) -> Task:
    images, labels = (_array(f"{part}_train.npy.xz")[:6000] for part in "xy")
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1)),
        *(nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1)),
        *(nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10)),
    )
    inputs = torch.from_numpy(images.astype("float32")).div(255).unsqueeze(1)
    targets = torch.from_numpy(labels.astype("int64"))
    return Task("a tenth of Fashion-MNIST, CNN-2", model, inputs, targets, 256, 6 if quick else 60, 0.2)


def _array(name: str) -> numpy.ndarray:
    with lzma.open(folder() / "fashion_mnist" / name) as file:
        return numpy.load(file)
