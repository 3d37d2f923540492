"""What is measured: data sets, the features of each, and the epsilons."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks import datasets
from dpilot.transfer import backbones
from dpilot.transfer.features import Features
from dpilot.transfer.scattering import scattered


@dataclass(frozen=True, slots=True)
class Task:
    """Unit rows of the features of a data set, to be learned at each epsilon; ``centres`` buys their mean first.

    ``more``: on the larger grid of recipes.
    """

    data: str
    features: str
    epsilons: tuple[float, ...]
    centres: bool = False
    more: bool = False

    @property
    def name(self) -> str:
        return f"{self.data}, {self.features}" + (", centred" if self.centres else "")


TASKS = (
    Task("cifar-10", "resnet-20", (1.0, 8.0), more=True),
    Task("cifar-10", "resnet-20", (1.0, 8.0), centres=True, more=True),
    Task("cifar-10", "wrn-16-4", (1.0, 8.0), more=True),
    Task("cifar-10", "wrn-16-4", (1.0, 8.0), centres=True, more=True),
    Task("cifar-10", "efficientnet-lite0", (1.0, 8.0)),
    Task("cifar-10", "efficientnet-lite0", (1.0, 8.0), centres=True),
    Task("fashion-mnist", "scattering", (2.7,)),
    Task("mnist", "scattering", (2.93,)),
)


def load(task: Task, device: str, size: int | None = None) -> tuple[Features, Features]:
    """Unit rows of the training and the test records, on ``device``; only the first ``size`` of each if given."""
    parts = [datasets.load(task.data, part) for part in ("train", "test")]
    read = _scattering(device) if task.features == "scattering" else _backbone(task.features, device)
    train, test = (read(part.inputs[:size].to(device), part.labels[:size], len(part.classes)) for part in parts)
    return train.to(device), test.to(device)


def _scattering(device: str) -> Callable[[Any, Any, int], Features]:
    def read(images: Any, labels: Any, classes: int) -> Features:
        return scattered(images, labels, classes, batch=2048 if device == "cuda" else 512)

    return read


def _backbone(name: str, device: str) -> Callable[[Any, Any, int], Features]:
    backbone: Any = backbones.load(name)
    backbone.model.to(device)

    def read(images: Any, labels: Any, classes: int) -> Features:
        values = backbone.features(images, chunk=1000 if device == "cuda" else 250)
        return Features.of(torch.as_tensor(values), labels, classes).unit()

    return read
