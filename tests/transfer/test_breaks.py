"""Records beside which one record more, less, or null once moved more than its bound, or raised."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpilot import audit
from dpilot.errors import InvalidInput
from dpilot.privacy.receipt import Receipt
from dpilot.transfer import head_gradients
from dpilot.transfer.features import Features
from dpilot.transfer.head_gradients import FeatureBlocks, residual_limits
from dpilot.transfer.probe import Head, fit_heads, predict

MANY, WIDTH, CLASSES, DEPTH = 1 << 20, 5, 3, 2048


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
        records = FeatureBlocks.of(Features.of(values, found, CLASSES))
        sums.append(
            records.clip_and_sum(
                torch.zeros(1, CLASSES, WIDTH), residual_limits(records.lengths, torch.ones(1), CLASSES)
            )
        )
    assert 0.99 < float((sums[0] - sums[1]).norm()) <= 1


def drifting(top, last):
    """Numbers whose sum comes close to ``top``, and ones so small that beyond it their roundings all lean one way."""
    unit, bulk = top * 2.0**-23, 0.6875
    many = int(top / bulk)
    first = [*[bulk] * many, top - bulk * many - 4 * unit]
    small = [unit / 2 * 1.001, -unit / 2 * 0.999] * DEPTH
    return first, small[: last - len(first)]


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("top", [16.0, 32.0, 64.0, 512.0, 1024.0])
def test_a_record_that_carries_a_sum_over_a_power_of_two_moves_it_by_no_more_than_the_threshold(top, classes):
    length = (1 - 1 / classes) * (1 + 1 / (classes - 1)) ** 0.5  # of a residual at weights 0
    first, small = drifting(top, head_gradients._STRETCH - 1)
    entries = torch.tensor([*first, 0.995 / length, *small]).float()
    values = torch.zeros(len(entries), WIDTH)
    values[:, 0] = entries / (1 - 1 / classes)
    here, gone = torch.zeros(len(entries)), torch.zeros(len(entries))
    gone[len(first)] = -1
    sums = []
    for labels in (here, gone):
        records = FeatureBlocks.of(Features.of(values, labels, classes))
        limits = residual_limits(records.lengths, torch.ones(1), classes)
        sums.append(records.clip_and_sum(torch.zeros(1, classes, WIDTH), limits))
    assert float((sums[0] - sums[1]).norm()) <= 1


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


ODD_LABELS = [None, "a", 2**63, -(2**63), 2**70, 10**400, 0.5, float("nan"), [1, 2], {}, 1j, torch.ones(2), b"\xff"]
ODD_ROWS = [[1.0], [1.0] * 3, [None, 2.0], ["x", 1.0], [2**70, 1e300], [[1.0], 2.0], None, 4.0, "ab", torch.ones(3), {}]
WHOLE = [[2**60 + 2**36 + 1, 1], [3, 4]]


@pytest.mark.parametrize("kind", [list, tuple, "objects"])
@pytest.mark.parametrize("odd", ODD_LABELS, ids=str)
def test_one_label_leaves_the_other_records_alone(odd, kind):
    labels = [0, 1, odd]
    if kind == "objects":
        labels = np.fromiter(labels, dtype=object)
    found = Features.of([*WHOLE, [5, 6]], labels if kind == "objects" else kind(labels), 2)
    assert torch.equal(found.values[:2], Features.of(WHOLE, [0, 1], 2).values)
    assert found.labels.tolist() == [0, 1, -1]


@pytest.mark.parametrize("odd", ODD_ROWS, ids=str)
def test_one_row_leaves_the_other_records_alone(odd):
    found = Features.of([*WHOLE, odd], [0, 1, 1], 2)
    assert torch.equal(found.values[:2], Features.of(WHOLE, [0, 1], 2).values)
    assert found.labels.tolist() == [0, 1, -1]


def test_numbers_are_read_alike_beside_fractions_and_in_every_container():
    expected = Features.of(WHOLE, [0, 1], 2).values
    made = [
        [torch.tensor(row) for row in WHOLE],
        [np.array(row) for row in WHOLE],
        np.array(WHOLE),
        torch.tensor(WHOLE),
    ]
    made += [np.array(WHOLE, dtype=object), np.array(WHOLE, dtype=np.uint64), [*WHOLE, [0, 0.5]]]
    made += [np.array([*WHOLE, [0, 0.5]]), np.array([*WHOLE, [0, 2**63]]), np.array([*WHOLE, [0, "x"]])]
    for values in made:
        labels = [torch.tensor(0), np.int64(1), True][: len(values)]
        assert torch.equal(Features.of(values, labels, 2).values[:2], expected)


def test_what_is_no_table_is_refused():
    for values in ("ab", {"a": 1}, 3.0, [1.0, 2.0]):
        with pytest.raises(InvalidInput, match="expected"):
            Features.of(values, [0, 1], 2)
