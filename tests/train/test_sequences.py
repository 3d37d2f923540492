"""Losses of sequences belong to the sequence alone; perplexity goes through the door."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from dpilot.errors import InvalidInput
from dpilot.privacy.events import Gaussian
from dpilot.privacy.receipt import Receipt
from dpilot.train.sequences import blocks, causal_loss, perplexity, token_mean, train_only


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(7, 4), nn.Linear(4, 7)

    def forward(self, input_ids, attention_mask=None):
        return self.head(self.table(input_ids))


def test_a_sequence_is_divided_by_its_own_tokens_whatever_stands_beside_it():
    torch.manual_seed(0)
    model, ids = Tiny(), torch.randint(0, 7, (5, 6))
    mask = (torch.arange(6) < torch.tensor([[6], [2], [4], [1], [0]])).long()
    together = causal_loss(model, {"input_ids": ids, "attention_mask": mask})
    alone = [causal_loss(model, {"input_ids": ids[i : i + 1], "attention_mask": mask[i : i + 1]}) for i in range(5)]
    torch.testing.assert_close(together, torch.cat(alone))
    short = causal_loss(model, {"input_ids": ids[1:2, :2]})
    torch.testing.assert_close(together[1:2], short)
    assert together[3] == together[4] == 0.0


def test_labels_say_which_tokens_count():
    model, ids = Tiny(), torch.randint(0, 7, (1, 5))
    labels = torch.where(torch.arange(5) < 3, -100, ids)
    logits = model(ids)
    expected = nn.functional.cross_entropy(logits[0, 2:4], ids[0, 3:5])
    torch.testing.assert_close(causal_loss(model, {"input_ids": ids, "labels": labels})[0], expected)


def test_half_precision_logits_are_summed_in_float32():
    assert token_mean(torch.zeros(1, 2, 3, dtype=torch.bfloat16), torch.zeros(1, 2).long()).dtype == torch.float32


def test_perplexity_is_near_the_truth_and_drawn_from_its_receipt():
    receipt = Receipt(Gaussian(1.0))
    losses = [torch.full((500,), 2.0), torch.full((500,), 3.0), torch.tensor([float("nan"), float("inf")])]
    found = perplexity(losses, highest=10.0, size=1000, noise_multiplier=1.0, receipt=receipt)
    assert found == pytest.approx(math.exp(2.5), rel=0.05)
    with pytest.raises(Exception, match="drawn already"):
        perplexity(losses, highest=10.0, size=1000, noise_multiplier=1.0, receipt=receipt)


def test_one_sequence_moves_the_sum_by_half_the_range(replay):
    import numpy as np

    def run(values):
        receipt = Receipt(Gaussian(1.0))
        chunks = torch.from_numpy(values).split(3)
        return perplexity(chunks, highest=4.0, size=10, noise_multiplier=1.0, receipt=receipt)

    results = replay(run, np.array([0.5, 3.0, 8.0, 1.0]))
    assert max(result.largest for result in results) == pytest.approx(1.0)


def test_blocks_are_chosen_by_name():
    model = Tiny()
    assert train_only(model, "head.*") == ["head.weight", "head.bias"]
    assert blocks(model) == {"table": 0, "head": 35}
    with pytest.raises(InvalidInput, match="no parameter matches"):
        train_only(model, "nothing.*")
