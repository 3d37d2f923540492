"""Features: null records, per-record normalisation, a center that is paid for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from dpilot.errors import BudgetExceeded, InvalidInput
from dpilot.noise import seeded_noise
from dpilot.privacy.events import Gaussian
from dpilot.privacy.receipt import Receipt
from dpilot.transfer.features import Features, centred, extract, extract_rows, private_center
from tests.data.raising import raising_cells

GENERATOR = np.random.default_rng(5)
VALUES = GENERATOR.normal(size=(12, 6)).astype(np.float32)
LABELS = np.arange(12) % 3


def features(values=VALUES, labels=LABELS, classes=3):
    return Features.of(values, labels, classes)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_a_row_that_float32_cannot_hold_is_null(bad):
    values = VALUES.astype(np.float64)
    values[4, 2] = bad
    found = features(values)
    assert found.values[4].tolist() == [0.0] * 6
    assert found.labels[4] == -1
    assert torch.equal(found.values[5], torch.from_numpy(VALUES)[5])
    assert found.labels[5] == 2


@pytest.mark.parametrize("bad", [-1, 3, 10**12, 0.5, np.nan, np.inf, -1e30, 1e30])
def test_a_label_that_is_no_class_is_null(bad):
    labels = LABELS.astype(type(bad) if isinstance(bad, float) else np.int64)
    labels[0] = bad
    found = features(labels=labels)
    assert found.labels.tolist() == [-1, *LABELS[1:].tolist()]
    assert found.values[0].tolist() == [0.0] * 6


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


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float64, bool])
def test_values_of_any_type_become_float32(dtype):
    assert features(np.ones((12, 6), dtype)).values.dtype == torch.float32


def test_shapes_that_do_not_belong_together_are_refused():
    with pytest.raises(InvalidInput, match="2 and 1 dimensions, or differ in length"):
        features(labels=LABELS[:11])
    with pytest.raises(InvalidInput, match="classes is 1"):
        features(classes=1)


def test_unit_rows_have_length_one_also_at_the_ends_of_the_range():
    values = VALUES * np.array([1, 1e-38, 1e38, 1e-44, 0, 1, 1, 1, 1, 1, 1, 1], dtype=np.float32)[:, None]
    found = features(np.clip(values, -3e38, 3e38)).unit().values.double().norm(dim=1)
    assert found[4] == 0
    assert torch.allclose(torch.cat([found[:4], found[5:]]), torch.ones(11, dtype=torch.float64), atol=1e-6)


def test_groups_have_mean_zero_and_variance_one_in_each_record():
    found = features().grouped(2).values.view(12, 2, 3)
    assert torch.allclose(found.mean(2), torch.zeros(12, 2), atol=1e-6)
    assert torch.allclose(found.square().mean(2), torch.ones(12, 2), atol=5e-3)
    with pytest.raises(InvalidInput, match="groups is 4: expected a divisor of the 6 features"):
        features().grouped(4)


@pytest.mark.parametrize("change", [Features.unit, lambda f: f.grouped(3), lambda f: centred(f, center=torch.ones(6))])
def test_a_record_is_normalised_on_its_own(change):
    values = VALUES.copy()
    values[7] = 1e20
    before, after = change(features()).values, change(features(values)).values
    others = [j for j in range(12) if j != 7]
    assert torch.equal(before[others], after[others])
    for j in range(12):
        assert torch.equal(change(features().take([j])).values[0], before[j])


def test_null_records_stay_null_when_normalised():
    values = VALUES.copy()
    values[2, 0] = np.nan
    paid = {"noise_multiplier": 1.0, "receipt": Receipt(Gaussian(1.0)), "size": 12}
    for found in (features(values).unit(), features(values).grouped(2), centred(features(values), **paid)):
        assert found.values[2].tolist() == [0.0] * 6
        assert found.labels[2] == -1
        assert bool(torch.isfinite(found.values).all())


def test_take_accepts_places_and_masks():
    assert features().take([3, 1]).labels.tolist() == [0, 1]
    assert features().take(LABELS == 2).labels.tolist() == [2] * 4
    assert len(features().take([])) == 0


def test_the_center_is_the_noisy_mean_of_unit_rows_over_the_declared_size():
    found = private_center(
        features(), noise_multiplier=1e-6, receipt=Receipt(Gaussian(1e-6)), size=24, noise=seeded_noise(1)
    )
    rows = VALUES.astype(np.float64) / np.linalg.norm(VALUES, axis=1, keepdims=True)
    assert np.allclose(found.numpy(), rows.sum(0) / 24, atol=1e-5)


def test_centred_rows_are_unit_and_follow_the_bought_center():
    sigma, noise = 3.0, {"noise": seeded_noise(2)}
    center = private_center(features(), noise_multiplier=sigma, receipt=Receipt(Gaussian(sigma)), size=12, **noise)
    bought = centred(
        features(), noise_multiplier=sigma, receipt=Receipt(Gaussian(sigma)), size=12, noise=seeded_noise(2)
    )
    given = centred(features(), center=center)
    assert torch.equal(bought.values, given.values)
    expected = features().unit().values - center
    assert torch.allclose(bought.values, expected / expected.norm(dim=1, keepdim=True), atol=1e-6)


def test_a_private_center_must_be_paid_for():
    with pytest.raises(InvalidInput, match="without a price"):
        centred(features())
    spent = Receipt(Gaussian(2.0))
    centred(features(), noise_multiplier=2.0, receipt=spent, size=12)
    with pytest.raises(BudgetExceeded):
        centred(features(), noise_multiplier=2.0, receipt=spent, size=12)
    with pytest.raises(InvalidInput, match="center is 'mean'"):
        centred(features(), center="mean")
    with pytest.raises(InvalidInput, match=r"shape of center is \(5,\)"):
        centred(features(), center=torch.zeros(5))


def test_one_record_moves_the_center_by_no_more_than_its_bound(replay):
    def run(data):
        values, labels = data
        found = private_center(
            Features.of(values, labels, 3), noise_multiplier=1.0, receipt=Receipt(Gaussian(1.0)), size=12
        )
        return found.tolist()

    moves = replay(run, (VALUES, LABELS))
    assert max(move.largest for move in moves) > 0.9


def test_extraction_is_the_same_whatever_the_batch():
    images = torch.from_numpy(GENERATOR.normal(size=(7, 3, 4, 4)).astype(np.float32))
    net = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Flatten()).eval()
    whole = net(images).detach()
    for batch in (1, 3, 7, 100):
        assert torch.allclose(extract(net, images, batch), whole, atol=1e-6)
    assert extract(net, images.numpy(), 3).requires_grad is False
    assert extract(net, images[:0]).shape == (0, 20)


@pytest.mark.parametrize("kind", raising_cells(SystemExit))
def test_a_value_that_ends_the_process_when_it_is_read_makes_its_own_record_null(kind):
    cell = raising_cells(SystemExit)[kind]
    for values in ([[1.0, 2.0], [cell, 2.0], [3.0, 4.0]], [[1.0, 2.0], cell, [3.0, 4.0]]):
        found = Features.of(values, [0, 1, 1], classes=2)
        assert found.values.tolist() == [[1.0, 2.0], [0.0, 0.0], [3.0, 4.0]]
        assert found.labels.tolist() == [0, -1, 1]


def test_every_image_is_extracted_in_a_batch_whose_size_does_not_tell_how_many_come_after():
    def seen(n):
        sizes = []
        extract_rows(lambda block: sizes.append(len(block)) or block.flatten(1), torch.ones(n, 1, 2, 2), batch=32)
        return sizes

    whole = seen(200)
    for n in (0, 1, 7, 8, 9, 33, 199):
        assert seen(n) == whole[: len(seen(n))]


def test_a_module_in_training_mode_is_refused():
    with pytest.raises(InvalidInput, match="training mode"):
        extract(nn.BatchNorm2d(3), torch.zeros(2, 3, 4, 4))
