"""Linear heads on units: rows of a unit add no more than one record, whatever they hold and however many there are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpilot import Budget
from dpilot.data.splits import Split
from dpilot.errors import InvalidInput
from dpilot.privacy.events import Gaussian
from dpilot.privacy.ledger import Ledger
from dpilot.privacy.receipt import Receipt
from dpilot.privacy.unit import PrivacyUnit
from dpilot.transfer.features import Features, private_center
from dpilot.transfer.head_gradients import FeatureBlocks, residual_limits
from dpilot.transfer.probing import fit_probe
from dpilot.tune import ProbeTask
from tests.tapes import exact_sum

UNIT, KEY = PrivacyUnit("patient_id", 4), bytes(32)
RNG = np.random.default_rng(0)
ROWS, LABELS, IDS = RNG.normal(size=(300, 6)), RNG.integers(0, 3, 300), RNG.integers(0, 90, 300)
HOSTILE = {
    "one row": np.full((1, 6), 9.0),
    "equal rows": np.full((4, 6), 9.0),
    "a thousand rows": np.full((1000, 6), -9.0),
    "opposite rows": np.array([[5.0] * 6, [-5.0] * 6, [1e20] * 6]),
    "null rows": np.full((3, 6), np.nan),
}


def grouped(more: np.ndarray | None = None) -> Features:
    rows = ROWS if more is None else np.concatenate([ROWS, more])
    extra = len(rows) - len(ROWS)
    labels = np.append(LABELS, np.arange(extra) % 3)
    return Features.of(rows, labels, 3).by_unit(np.append(IDS, np.full(extra, 1000)), UNIT, key=KEY)


def sum_of(features: Features, weights: torch.Tensor, threshold: float) -> torch.Tensor:
    blocks = FeatureBlocks.of(features)
    limits = residual_limits(blocks.lengths, torch.tensor([threshold]), 3)
    return blocks.clip_and_sum(weights, limits)


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("threshold", [0.1, 1.0, 50.0])
def test_a_unit_moves_the_sum_of_a_head_by_no_more_than_the_threshold(name, threshold):
    weights = torch.randn(1, 3, 6, generator=torch.Generator().manual_seed(0))
    moved = sum_of(grouped(HOSTILE[name]), weights, threshold) - sum_of(grouped(), weights, threshold)
    assert float(torch.linalg.vector_norm(moved)) <= threshold
    if name == "null rows":
        assert not moved.any()


def test_a_sum_is_that_of_means_of_clipped_rows():
    features, weights = grouped(), torch.randn(1, 3, 6, generator=torch.Generator().manual_seed(1))
    rows = features.values.double()
    pull = torch.softmax(rows @ weights[0].double().T, 1) - torch.nn.functional.one_hot(features.labels, 3)
    gradients = torch.einsum("nc,nd->ncd", pull, rows)
    norms = torch.linalg.vector_norm(gradients, dim=(1, 2))
    limit = 0.7 * (1 - 2 * 128**2 * 2.0**-24)  # less what is taken off for roundings
    clipped = gradients * (limit / norms).clamp_max(1.0)[:, None, None]
    assert features.shares is not None
    expected = (clipped * features.shares.double()[:, None, None]).sum(0)
    assert torch.allclose(sum_of(features, weights, 0.7)[0], expected, atol=1e-4)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_unit_moves_the_center_by_no_more_than_one(name):
    def center(features):
        return private_center(features, noise_multiplier=1.0, receipt=Receipt(Gaussian(1.0)), size=90.0)

    moved = exact_sum(center, grouped(HOSTILE[name])) - exact_sum(center, grouped())
    assert np.linalg.norm(moved) <= 1


def test_shares_go_with_their_rows():
    features = grouped()
    assert features.shares is not None
    chosen = np.array([3, 50, 7])
    assert torch.equal(features.take(chosen).shares, features.shares[chosen])
    assert torch.equal(features.shuffled().shares.sort().values, features.shares.sort().values)


def test_a_probe_is_paid_for_units(tmp_path):
    features = grouped().unit()
    ledger = Ledger.open(tmp_path / "a.ledger", dataset="a", budget=Budget(3.0, 1e-3), bound="gdp", unit="patient_id")
    fit_probe(features, Budget(1.0, 1e-3), lr=1.0, steps=3, size=90, center="private", ledger=ledger)
    assert {str(entry.unit) for entry in ledger.entries()} == {"patient_id, 4 rows"}
    with pytest.raises(InvalidInput, match="was made for 'patient_id'"):
        fit_probe(Features.of(ROWS, LABELS, 3), Budget(1.0, 1e-3), lr=1.0, steps=3, size=300, ledger=ledger)
    with pytest.raises(InvalidInput, match="number of units, declared"):
        fit_probe(features, Budget(1.0, 1e-3), lr=1.0, steps=3)
    with pytest.raises(InvalidInput, match="one id for each"):
        Features.of(ROWS, LABELS, 3).by_unit(IDS[1:], UNIT)


def test_units_are_split_and_sampled_whole():
    features = grouped()
    task = ProbeTask.of(features, Split.draw({"train": 0.5, "held-out": 0.5}), size=90.0)
    assert features.units is not None
    train, held_out = (set(map(tuple, part.values.tolist())) for part in (task.train_features, task.held_out))
    whose = {tuple(row): int(unit) for row, unit in zip(features.values.tolist(), features.units, strict=True)}
    assert not {whose[row] for row in train} & {whose[row] for row in held_out}
    assert len(held_out) == len({whose[row] for row in held_out}), "one row of each"
    assert task.held_out.shares is None
    assert task.unit == UNIT
    sample = task.subsample(0.5).train_features
    assert sample.shares is not None
    assert 0 < len(sample) < len(task.train_features)
    totals = torch.zeros(features.count).index_add(0, sample.units, sample.shares)
    assert torch.allclose(totals[totals > 0], torch.ones(1)), "whole units"
    with pytest.raises(InvalidInput, match="fit_table"):
        ProbeTask.of(features, Split.draw({"train": 0.5, "held-out": 0.5}), size=90.0, groups=[0] * 300)


@pytest.mark.parametrize("rows", [1, 3, 7, 15, 30])
def test_the_rows_of_a_unit_add_up_to_no_more_than_one_in_float32_too(rows):
    unit = PrivacyUnit("patient_id", 30)
    features = Features.of(np.tile([[3.0, 4.0, 1.0]], (rows, 1)), [0] * rows, 2).by_unit(["a"] * rows, unit)
    paid = {"noise_multiplier": 1.0, "receipt": Receipt(Gaussian(1.0)), "size": 1.0}
    assert 1 - 1e-6 < np.linalg.norm(exact_sum(private_center, features, **paid)) <= 1


def test_one_row_of_a_unit_is_taken_wherever_its_rows_lie():
    """A secret order puts them apart."""
    features = grouped().shuffled()
    taken = features.one_a_unit()
    assert len(taken) == len(set(features.units.tolist()))
    task = ProbeTask.of(features, Split({"train": 0.5, "held-out": 0.5}, KEY), size=90)
    assert len(task.held_out) + len(set(task.train_features.units.tolist())) == len(taken)
