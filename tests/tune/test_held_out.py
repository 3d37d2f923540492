"""Held-out records are computed where, and beside as many, as without the one that does not compute."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpilot.numerics.products import products
from dpilot.train.batches import held_out
from dpilot.train.batches.held_out import evaluation_form, map_records
from dpilot.train.run import predict
from dpilot.transfer.features import extract_rows

SIZE = 700


class Seen(nn.Module):
    """Looks ids up, and remembers the shapes it is called with."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.shapes = nn.Embedding(10, 3), []

    def forward(self, ids):
        self.shapes.append(tuple(ids.shape))
        return self.table(ids)


def outcomes(ids):
    model = Seen()
    data = TensorDataset(ids, torch.zeros(len(ids), dtype=torch.int64))
    form = evaluation_form(data, None, grouped=False)
    with patch.object(held_out, "draw_order", np.arange):
        found = list(map_records(data, form, lambda chunk: predict(model, chunk[0]).double().numpy()))
    return np.concatenate(found), model.shapes


def test_the_order_of_scored_records_is_drawn():
    first, second = (held_out.draw_order(50) for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(50))
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, np.arange(50))


@pytest.mark.parametrize("place", [0, 5, 300, SIZE - 1])
def test_a_record_that_does_not_compute_moves_no_other(place):
    ids = torch.arange(SIZE) % 10
    expected, shapes = outcomes(ids)
    broken = ids.clone()
    broken[place] = 99
    found, others = outcomes(broken)
    assert np.array_equal(found, np.delete(expected, place, axis=0))
    assert set(others) - {(8,)} == set(shapes) - {(8,)}  # alone, a record is in the smallest block


def test_nothing_comes_of_records_none_of_which_computes():
    with pytest.raises(ValueError, match="at least one array"):
        outcomes(torch.full((5,), 99))


@pytest.mark.parametrize("count", [1, 7, 16, 17, 100, 5000])
def test_one_row_more_changes_no_bit_of_another(count):
    rng = np.random.default_rng(0)
    rows, weights = rng.normal(size=(5001, 37)), rng.normal(size=(37, 3))
    assert np.array_equal(products(rows[:count], weights), products(rows, weights)[:count])
    assert np.allclose(products(rows[:count], weights), rows[:count] @ weights)


def test_a_function_of_images_sees_blocks_that_follow_from_the_place():
    shapes = []

    def look(images):
        shapes.append(images.shape[0])
        return images.flatten(1)

    images = torch.rand(45, 1, 4, 4)
    assert torch.equal(extract_rows(look, images, batch=16), images.flatten(1))
    assert shapes == [8, 8, 16, 16]
