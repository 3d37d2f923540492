"""Heads as tasks: tables of held-out records only, null records nowhere, samples by coins."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dpilot.data.splits import Split
from dpilot.errors import InvalidInput
from dpilot.privacy.events import Gaussian
from dpilot.privacy.receipt import Receipt
from dpilot.tune import ProbeTask
from tests.tune.helpers import arrays, features, probe


def noisy(task, model, objective):
    return task.table(model, objective, noise_multiplier=0.01, receipt=Receipt(Gaussian(0.01)))


def test_a_model_that_is_not_finite_scores_worst_and_draws_nothing():
    task, receipt = probe(), Receipt(Gaussian(1.0))
    for bad in (math.nan, math.inf):
        model = torch.zeros(3, 2)
        model[0, 0] = bad
        assert task.table(model, "accuracy", noise_multiplier=1.0, receipt=receipt) is None
    receipt.draw(Gaussian(1.0))


def test_tables_count_each_held_out_record_in_its_cell():
    values, labels = arrays(30, 1)
    values[4] = np.nan
    groups = torch.arange(30) % 3
    task = probe(held_out=(values, labels), groups=groups, group_count=3)
    model = torch.tensor([[-1.0, 1.0], [0.0, 0.0], [0.0, 0.0]])  # right always, as classes are signs of the first value
    known = np.delete(np.arange(30), 4)
    for objective, expected in (
        ("accuracy", [29]),
        ("macro", np.bincount(labels[known])),
        ("worst_class", np.bincount(labels[known])),
        ("worst_group", np.bincount(known % 3)),
    ):
        exact = task.exact_table(model, objective)
        assert exact.tolist() == [[0, count] for count in expected]
        assert np.abs(noisy(task, model, objective) - exact).max() < 0.1
        assert task.exact_table(-model, objective).tolist() == [[count, 0] for count in expected]


def test_of_splits_by_coins_and_groups_go_with_their_records():
    both = features(arrays(200))
    split = Split.draw({"train": 0.7, "held-out": 0.3})
    task = ProbeTask.of(both, split, size=200, groups=both.labels, group_count=2)
    assert len(task.train_features) + len(task.held_out) == 200
    assert (task.size, task.held_out_size, task.split) == (140.0, 60.0, split.id)
    assert torch.equal(task.groups, task.held_out.labels)


def test_a_sample_keeps_each_training_record_by_a_coin_and_divides_by_the_expected_size():
    task = probe(arrays(4000))
    sample = task.subsample(0.2)
    assert abs(len(sample.train_features) - 800) < 5 * math.sqrt(4000 * 0.2 * 0.8)
    assert sample.size == pytest.approx(0.2 * task.size)
    assert sample.held_out is task.held_out
    assert len(task.subsample(0.2).train_features) != len(task.subsample(0.5).train_features)


def test_groups_are_one_a_record():
    with pytest.raises(InvalidInput, match="one group code"):
        probe(groups=torch.zeros(3), group_count=2)


def test_heads_are_scored_on_held_out_rows_with_their_groups():
    groups = torch.arange(30) % 2
    task = probe(groups=groups, group_count=2)
    found = task.predictions(torch.zeros(3, 2))
    assert found.target.tolist() == task.held_out.labels.tolist()
    assert found.group.tolist() == groups.tolist()
    assert np.allclose(found.probabilities, 0.5)
