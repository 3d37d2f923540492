"""Records beside which one record more, less, or null once moved more than its bound, or raised."""

from __future__ import annotations

import pytest
import torch

from dpilot import audit
from dpilot.privacy.receipt import Receipt
from dpilot.transfer.features import Features
from dpilot.transfer.probe import Head, fit_heads, predict
from dpilot.transfer.residuals import Records, reach

MANY, WIDTH, CLASSES = 1 << 20, 5, 3


def one_way():
    """Many records that all point one way, so that their sum is as long as it can be."""
    row = torch.randn(WIDTH, generator=torch.Generator().manual_seed(0))
    return (3 * row / row.norm()).repeat(MANY, 1), torch.zeros(MANY, dtype=torch.long)


def without_the_first(labels):
    return torch.where(torch.arange(len(labels)) == 0, -1, labels)


def test_an_early_record_moves_a_long_sum_by_no_more_than_the_threshold():
    values, labels = one_way()
    sums = []
    for found in (labels, without_the_first(labels)):
        records = Records.of(Features.of(values, found, CLASSES))
        sums.append(records.clipped_sum(torch.zeros(1, CLASSES, WIDTH), reach(records.lengths, torch.ones(1), CLASSES)))
    assert 0.99 < float((sums[0] - sums[1]).norm()) <= 1


def test_an_early_record_moves_a_release_over_many_records_by_no_more_than_its_bound():
    head = Head(lr=1.0, steps=1, noise_multiplier=1.0)
    values, labels = one_way()

    def run(found):
        return fit_heads(Features.of(values, found, CLASSES), [head], receipts=[Receipt(head.event)], size=MANY)

    seen = audit.replay(run, labels, without_the_first(labels))
    assert seen.differences == ()
    assert 0.99 < seen.largest <= 1


@pytest.mark.parametrize("classes", [2, 100])
def test_a_tie_is_broken_alike_however_many_records_there_are(classes):
    generator = torch.Generator().manual_seed(classes)
    for _ in range(30):
        numbers = torch.randn(240, generator=generator)
        orders = [torch.randperm(240, generator=generator) for _ in range(classes)]
        weights = torch.stack([numbers[order] for order in orders]).T  # one sum in many orders, equal but for rounding
        found = predict(torch.ones(70, 240), weights)
        for count in (1, 2, 3, 5, 17, 69):
            assert torch.equal(predict(torch.ones(count, 240), weights), found[:count])
    assert predict(torch.ones(0, 240), weights).shape == (0,)
