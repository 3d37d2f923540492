"""Class weights multiply the loss of linear heads before clipping: no weight makes a record longer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpilot.errors import InvalidInput
from dpilot.privacy.receipt import Receipt
from dpilot.privacy.unit import PrivacyUnit
from dpilot.transfer.features import Features
from dpilot.transfer.head_gradients import FeatureBlocks, residual_limits
from dpilot.transfer.probe import Head, fit_heads
from tests.transfer.test_units import HOSTILE, grouped

RNG = np.random.default_rng(3)
WIDTH, CLASSES = 6, 3
ROWS, LABELS = RNG.normal(size=(300, WIDTH)), RNG.integers(0, CLASSES, 300)
HEADS = torch.randn(1, CLASSES, WIDTH, generator=torch.Generator().manual_seed(0))
WEIGHTS = [(1.0, 10.0, 0.1), (1e6, 1.0, 1e-6), (1e30, 1e-30, 1.0)]


def sum_of(features: Features, threshold: float, weights, heads: torch.Tensor = HEADS) -> torch.Tensor:
    blocks = FeatureBlocks.of(features, class_weights=weights)
    limits = residual_limits(blocks.lengths, torch.tensor([threshold]), CLASSES)
    return blocks.clip_and_sum(heads, limits)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("threshold", [1e-3, 0.5, 100.0])
@pytest.mark.parametrize("label", [*range(CLASSES), -1, CLASSES])
def test_no_record_sends_more_than_the_threshold(weights, threshold, label):
    for row in (np.full(WIDTH, 9.0), np.full(WIDTH, 1e-9), RNG.normal(size=WIDTH), np.full(WIDTH, np.nan)):
        sent = sum_of(Features.of(row[None], [label], CLASSES), threshold, weights)
        assert bool(torch.isfinite(sent).all())
        assert float(torch.linalg.vector_norm(sent)) <= threshold
        if label in (-1, CLASSES):
            assert not sent.any()


@pytest.mark.parametrize("threshold", [0.1, 1.0, 50.0])
def test_the_sum_is_that_of_weighted_gradients_clipped(threshold):
    weights = torch.tensor(WEIGHTS[0], dtype=torch.float64)
    features = Features.of(ROWS, LABELS, CLASSES)
    rows = features.values.double()
    pull = torch.softmax(rows @ HEADS[0].double().T, 1) - torch.nn.functional.one_hot(features.labels, CLASSES)
    gradients = weights[features.labels, None, None] * pull[:, :, None] * rows[:, None]
    norms = torch.linalg.vector_norm(gradients, dim=(1, 2), keepdim=True)
    expected = (gradients * (threshold / norms).clamp_max(1.0)).sum(0)
    assert torch.allclose(sum_of(features, threshold, WEIGHTS[0])[0], expected, rtol=2e-2, atol=5e-3 * threshold)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_unit_moves_the_sum_by_no_more_than_the_threshold(name):
    moved = sum_of(grouped(HOSTILE[name]), 0.5, WEIGHTS[0]) - sum_of(grouped(), 0.5, WEIGHTS[0])
    assert float(torch.linalg.vector_norm(moved)) <= 0.5
    assert PrivacyUnit("patient_id", 4) == grouped().protects


def test_no_row_of_next_to_no_length_hides_another_of_its_unit():
    """Its limit is cut, so it counts for more than it sends: by too little to matter for any weight that is allowed."""
    rows = np.outer([1e-3, -1e-18], np.ones(WIDTH)) / WIDTH**0.5
    features = Features.of(rows, [0, 0], CLASSES).by_unit(["one"] * 2, PrivacyUnit("who", 2), key=bytes(32))
    still, threshold = torch.zeros(1, CLASSES, WIDTH), 1e12
    assert float(sum_of(features, threshold, (1e18, 1.0, 1.0), still).norm()) > 100 * threshold, "an attack"
    assert float(sum_of(features, threshold, (1e9, 1.0, 1.0), still).norm()) <= threshold
    head = Head(lr=1.0, steps=1, noise_multiplier=1.0, threshold=threshold)
    with pytest.raises(InvalidInput, match="class_weight"):
        fit_heads(features, [head], receipts=[Receipt(head.event)], size=1, class_weights=(1e18, 1.0, 1.0))


def test_equal_weights_change_nothing_and_wrong_ones_are_refused():
    features, head = Features.of(ROWS, LABELS, CLASSES), Head(lr=1.0, steps=3, noise_multiplier=1e-9)

    def fit(weights):
        return fit_heads(features, [head], receipts=[Receipt(head.event)], size=300, class_weights=weights)[0]

    assert torch.allclose(fit(None), fit([1.0] * CLASSES), atol=1e-5)
    assert not torch.allclose(fit(None), fit(WEIGHTS[0]), atol=1e-2)
    with pytest.raises(InvalidInput, match="class_weights"):
        fit([1.0, 2.0])
    with pytest.raises(InvalidInput, match="class_weight"):
        fit([1.0, 2.0, -1.0])
