"""Linear heads on units: rows of a unit add no more than one record, whatever they hold and however many there are."""

from __future__ import annotations

from dataclasses import replace

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


def sum_of(features: Features, weights: torch.Tensor, threshold: float, size: float | None = None) -> torch.Tensor:
    blocks = FeatureBlocks.of(features, size=size)
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


def means_of(features: Features, weights: torch.Tensor) -> torch.Tensor:
    """The gradients of units at ``weights`` (classes, d), formed: (units, classes, d)."""
    rows = features.values.double()
    pull = torch.softmax(rows @ weights.double().T, 1) - torch.nn.functional.one_hot(features.labels, len(weights))
    gradients = torch.einsum("nc,nd->ncd", pull, rows) / torch.bincount(features.units)[features.units, None, None]
    return gradients.new_zeros(features.count, *weights.shape).index_add_(0, features.units, gradients)


@pytest.mark.parametrize("size", [1.0, None])  # blocks of 128 rows, and one of all
@pytest.mark.parametrize("scattered", [False, True])
def test_a_sum_is_that_of_means_that_were_clipped_once(size, scattered):
    """Wherever blocks end, and wherever the rows of a unit lie."""
    features, weights = grouped(), torch.randn(1, 3, 6, generator=torch.Generator().manual_seed(1))
    limit = 0.7 * (1 - 2 * 128**2 * 2.0**-24)  # less what is taken off for roundings
    means = means_of(features, weights[0])
    norms = torch.linalg.vector_norm(means, dim=(1, 2), keepdim=True)
    assert 0.1 < float((norms > limit).double().mean()) < 0.9, "some are clipped"
    expected = (means * (limit / norms).clamp_max(1.0)).sum(0)
    if scattered:
        features = features.take(np.random.default_rng(3).permutation(len(features)))
    assert torch.allclose(sum_of(features, weights, 0.7, size)[0], expected, atol=1e-4)


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e6])
def test_the_norm_of_a_unit_is_no_less_than_it_is_and_hardly_more(scale):
    """Rows that nearly cancel are where norms from inner products are off by most."""
    rng = np.random.default_rng(5)
    base = rng.normal(size=(400, 1, 6))
    near = np.where(np.arange(400)[:, None, None] % 2 == 0, 1.0, rng.choice([1e-6, 1e-4, 1e-2], (400, 1, 1)))
    rows = scale * (base + near * rng.normal(size=(400, 4, 6)) * 10.0 ** rng.integers(-4, 1, (400, 4, 1)))
    labels = np.tile([0, 1, 0, 1], 400)  # of two classes, p - y is opposite at equal rows
    features = Features.of(rows.reshape(-1, 6), labels, 2).by_unit(np.repeat(np.arange(400), 4), UNIT, key=KEY)
    weights, threshold = torch.zeros(1, 2, 6), 0.25
    true = torch.linalg.vector_norm(means_of(features, weights[0]), dim=(1, 2))
    blocks = FeatureBlocks.of(features)
    limits = residual_limits(blocks.lengths, torch.tensor([threshold]), 2)
    (gradients,) = blocks.gradients(weights, limits)
    norms = gradients.norms[:, 0].double() * threshold * (1 - 2 * 128**2 * 2.0**-24 - 18 * 2.0**-24)
    rows_long = torch.linalg.vector_norm(features.values.double(), dim=1) / 2**0.5
    longest = torch.zeros(400, dtype=torch.float64).index_add_(0, features.units, rows_long * features.shares)
    assert (true < 1e-3 * longest).any(), "some cancel"
    assert (norms >= true).all()
    assert (norms <= true * (1 + 1e-5) + longest * 2.0**-9).all()


def test_a_unit_that_does_not_compute_moves_no_other():
    """Its scores are not finite, and its rows lie beside those of others."""
    features, weights = grouped(), torch.randn(1, 3, 6, generator=torch.Generator().manual_seed(2))
    broken = features.values.clone()
    broken[features.units == 40] *= 1e38
    others = features.take(features.units != 40)
    found = sum_of(replace(features, values=broken), weights, 0.7)
    assert torch.isfinite(found).all()
    assert torch.allclose(found, sum_of(others, weights, 0.7), rtol=0, atol=1e-12)


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
    shuffled = features.shuffled()
    assert torch.equal(shuffled.shares.sort().values, features.shares.sort().values)
    assert (shuffled.units.diff() >= 0).all(), "the rows of a unit stay together"
    assert not torch.equal(shuffled.values, features.values)


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
    assert 1 - 1e-4 < np.linalg.norm(exact_sum(private_center, features, **paid)) <= 1


def test_one_row_of_a_unit_is_taken_wherever_its_rows_lie():
    features = grouped()
    features = features.take(np.random.default_rng(4).permutation(len(features)))
    taken = features.one_a_unit()
    assert len(taken) == len(set(features.units.tolist()))
    task = ProbeTask.of(features, Split({"train": 0.5, "held-out": 0.5}, KEY), size=90)
    assert len(task.held_out) + len(set(task.train_features.units.tolist())) == len(taken)
