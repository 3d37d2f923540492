"""What the autopilot trains: a task, and the predictions of a trained model on its held-out records."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dpilot.mechanism import Noise
from dpilot.metrics.counts import Scored
from dpilot.train.run import predict
from dpilot.tune.held_out import map_records
from dpilot.tune.module_task import ModuleTask
from dpilot.tune.probe_task import ProbeTask
from dpilot.tune.recipe import secret_randomness
from dpilot.tune.task import Task

__all__ = ["Heads", "Learner", "Modules", "as_module"]


class Learner(Protocol):
    """A task, and its held-out records with the probabilities that a model gives them. Sensitive: for the door only."""

    @property
    def task(self) -> Task: ...

    def predictions(self, model: Any) -> Scored: ...

    def noise(self) -> Noise: ...


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """Linear heads on unit rows; a model is a (d, classes) tensor."""

    task: ProbeTask

    def predictions(self, model: Tensor) -> Scored:
        held_out, groups = self.task.held_out, self.task.groups
        with torch.no_grad():
            probabilities = torch.softmax((held_out.values @ model.to(held_out.values)).double(), 1)
        group = None if groups is None else groups.double().cpu().numpy()
        return Scored(held_out.labels.double().cpu().numpy(), probabilities.cpu().numpy(), group)

    def noise(self) -> Noise:
        return self.task.noise()


@dataclass(frozen=True, slots=True, eq=False)
class Modules:
    """Torch modules; a record that does not compute is null."""

    task: ModuleTask

    def predictions(self, model: nn.Module) -> Scored:
        task = self.task
        with secret_randomness(self.noise(), "figures"):
            rows = list(map_records(task.held_out, task.evaluation_form, partial(self._probabilities, model)))
        whole = torch.cat([torch.zeros(0, 1 + task.classes, dtype=torch.float64), *rows]).numpy()
        return Scored(whole[:, 0], whole[:, 1:])

    def noise(self) -> Noise:
        return self.task.noise()

    def _probabilities(self, model: nn.Module, chunk: Any) -> Tensor:
        """Class and probabilities of some records."""
        inputs, labels, *_ = chunk
        probabilities = torch.softmax(predict(model, inputs, protected=True).double(), 1)
        if probabilities.shape != (len(labels), self.task.classes):
            raise ValueError("not one probability a class and record")
        return torch.cat([labels.double().cpu()[:, None], probabilities], 1)


def as_module(weights: Tensor) -> nn.Sequential:
    """The head as layers that files can describe: rows scaled to unit length, then a linear map.

    RMSNorm divides a row by |x| / sqrt(d), so the weights are divided by sqrt(d).

    >>> layers = as_module(torch.tensor([[2.0, 0.0], [0.0, 2.0]]))
    >>> torch.allclose(layers(torch.tensor([[3.0, 4.0]])), torch.tensor([[1.2, 1.6]]))
    True
    """
    width, classes = weights.shape
    last = nn.Linear(width, classes, bias=False)
    with torch.no_grad():
        last.weight.copy_(weights.T / width**0.5)
    return nn.Sequential(nn.RMSNorm(width, eps=1e-30, elementwise_affine=False), last)
