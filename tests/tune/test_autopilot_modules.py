"""Modules under the autopilot: a record that does not compute is null, alone, in the figures too."""

from __future__ import annotations

import numpy as np
import torch
from dpilot.tune.pilot.learners import Heads, Modules
from torch import nn
from torch.utils.data import TensorDataset

from dpilot.tune import ModuleTask
from tests.tune.helpers import LOSS, probe


class Picky(nn.Module):
    """Refuses a chunk that holds a negative record."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(1, 2)

    def forward(self, x):
        if bool((x < 0).any()):
            raise ValueError("negative")
        return self.last(x)


def test_a_record_that_does_not_compute_is_left_out_alone():
    values = torch.tensor([[1.0], [-1.0], [2.0], [3.0]])
    held_out = TensorDataset(values, torch.tensor([0, 1, 1, 0]))
    task = ModuleTask(Picky, LOSS, held_out, held_out, 4, 4, 2, example=held_out[:1])
    found = Modules(task).predictions(Picky())
    assert found.target.tolist() == [0.0, 1.0, 0.0]
    assert found.probabilities.shape == (3, 2)
    assert np.allclose(found.probabilities.sum(axis=1), 1)


def test_heads_are_scored_on_held_out_rows_with_their_groups():
    groups = torch.arange(30) % 2
    task = probe(groups=groups, group_count=2)
    found = Heads(task).predictions(torch.zeros(3, 2))
    assert found.target.tolist() == task.held_out.labels.tolist()
    assert found.group.tolist() == groups.tolist()
    assert np.allclose(found.probabilities, 0.5)
