"""Linear heads: the bound of one record, the receipts, the noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dpilot import audit, privacy
from dpilot.errors import BudgetExceeded, InvalidInput
from dpilot.noise import seeded_noise
from dpilot.privacy.events import Gaussian, Repeated
from dpilot.privacy.receipt import Receipt
from dpilot.tape import tape
from dpilot.transfer import head_gradients
from dpilot.transfer.features import Features
from dpilot.transfer.head_gradients import FeatureBlocks, HeadGradients, residual_limits
from dpilot.transfer.joint import clip_heads
from dpilot.transfer.probe import Head, fit_heads
from tests.tapes import Recorder

GENERATOR = np.random.default_rng(11)
WIDTH, CLASSES, MANY = 5, 4, 1 << 20
VALUES = GENERATOR.normal(size=(9, WIDTH)).astype(np.float32)
LABELS = GENERATOR.integers(CLASSES, size=9)
HEADS = [
    Head(lr=5.0, steps=3, noise_multiplier=0.5),
    Head(lr=50.0, steps=2, noise_multiplier=2.0, threshold=0.1),
]


def fit(data, heads=HEADS, size=9, **options):
    return fit_heads(data, heads, receipts=[Receipt(head.event) for head in heads], size=size, **options)


def one_sum(values, labels, weights, threshold):
    """What the records send, with the weights given: (classes, d) in float64."""
    records = FeatureBlocks.of(Features.of(values, labels, CLASSES))
    limits = residual_limits(records.lengths, torch.tensor([threshold]), CLASSES)
    return records.clip_and_sum(weights.T[None].contiguous(), limits)[0].double()


AWKWARD = {
    "an outlier": np.full((1, WIDTH), 1e6),
    "an extreme outlier": np.full((1, WIDTH), 1e14),
    "the largest float": np.full((1, WIDTH), 3.4e38),
    "a tiny record": np.full((1, WIDTH), 1e-30),
    "a subnormal record": np.full((1, WIDTH), 1e-42),
    "a record of zeros": np.zeros((1, WIDTH)),
    "nan": np.full((1, WIDTH), np.nan),
    "inf": np.full((1, WIDTH), np.inf),
    "one inf": np.array([[1.0, np.inf, 0, 0, 0]]),
    "mixed scales": np.array([[1e20, 1.0, 1e-20, 0.0, -1e20]]),
}


@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e6, 1e30])
@pytest.mark.parametrize("threshold", [1e-6, 1.0, 1e6])
def test_no_record_sends_more_than_the_threshold(name, scale, threshold):
    weights = torch.from_numpy(GENERATOR.normal(size=(WIDTH, CLASSES)) * scale).float()
    for label in (*range(CLASSES), -1, CLASSES):
        sent = one_sum(AWKWARD[name], [label], weights, threshold)
        assert bool(torch.isfinite(sent).all())
        assert float(sent.norm()) <= threshold


def test_the_bound_is_used_up_by_long_records():
    sent = one_sum(AWKWARD["an outlier"], [0], torch.zeros(WIDTH, CLASSES), 1.0)
    assert 1 - 2.0**-8 < float(sent.norm()) <= 1


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_residuals_stay_within_their_limits_in_exact_arithmetic(classes):
    generator = torch.Generator().manual_seed(classes)
    scores = torch.randn(2, classes, 300, generator=generator) * torch.logspace(-6, 2, 300)
    labels = torch.randint(classes, (300,), generator=generator)
    lengths = torch.rand(300, generator=generator, dtype=torch.float64) * 5
    thresholds = torch.tensor([1.0, 0.37])
    limits, zeros = residual_limits(lengths, thresholds, classes), torch.empty(300, 0)
    gradients = HeadGradients(zeros, labels, limits, scores, product=lambda residuals, rows, kind: residuals)
    found, _ = gradients.clip_and_sum(clip_heads, None)
    assert bool((lengths * found.norm(dim=1) <= thresholds.double()[:, None]).all())


@pytest.mark.parametrize("null", ["nan", "inf", "one inf"])
def test_a_null_record_sends_nothing(null):
    weights = torch.ones(WIDTH, CLASSES)
    alone = one_sum(VALUES, LABELS, weights, 1.0)
    beside = one_sum(np.concatenate([VALUES, AWKWARD[null]]), [*LABELS, 0], weights, 1.0)
    assert torch.equal(alone, beside)
    unlabelled = one_sum(np.concatenate([VALUES, VALUES[:1]]), [*LABELS, -1], weights, 1.0)
    assert torch.equal(alone, unlabelled)


@pytest.mark.parametrize(("value", "label"), [(1.0, -1), (np.nan, 0), (np.inf, 1)])
def test_a_null_record_that_kept_its_values_sends_nothing(value, label):
    values = torch.from_numpy(np.concatenate([VALUES, np.full((1, WIDTH), value, np.float32)]))
    labels = torch.from_numpy(np.append(LABELS, label))
    limited = []
    for data in (Features(values, labels, CLASSES), Features(values[:-1], labels[:-1], CLASSES)):
        records = FeatureBlocks.of(data)
        limits = residual_limits(records.lengths, torch.ones(1), CLASSES)
        assert limits[0, 8] > 0
        limited.append(records.clip_and_sum(torch.ones(1, CLASSES, WIDTH), limits))
    assert torch.equal(*limited)
    assert limits.shape == (1, 9)


@pytest.mark.parametrize("count", [0, 1])
def test_empty_and_single_data_are_fitted_at_full_price(count):
    receipts = [Receipt(head.event) for head in HEADS]
    data = Features.of(VALUES[:count], LABELS[:count], CLASSES)
    found = fit_heads(data, HEADS, receipts=receipts, size=9)
    assert all(bool(weights.abs().sum() > 0) and weights.shape == (WIDTH, CLASSES) for weights in found)
    assert_drawn(receipts)


def test_one_record_moves_the_releases_by_no_more_than_their_bound(replay):
    def run(data):
        values, labels = data
        found = fit(Features.of(values, labels, CLASSES), size=9)
        return [weights.tolist() for weights in found]

    moves = replay(run, (VALUES, LABELS))
    assert max(move.largest for move in moves) > 0.5


def test_one_record_moves_the_releases_of_long_rows_too(replay):
    def run(data):
        values, labels = data
        return [weights.tolist() for weights in fit(Features.of(values, labels, CLASSES), size=100)]

    replay(run, (VALUES * np.float32(1e12), LABELS))


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
    small = [unit / 2 * 1.001, -unit / 2 * 0.999] * 2048
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


def assert_drawn(receipts):
    for head, receipt in zip(HEADS, receipts, strict=True):
        with pytest.raises(BudgetExceeded):
            receipt.draw(Gaussian(head.noise_multiplier))
        assert +receipt._drawn == {Gaussian(head.noise_multiplier): head.steps}


def test_every_receipt_is_drawn_once_a_step_of_its_own_head():
    receipts = [Receipt(head.event) for head in HEADS]
    fit_heads(Features.of(VALUES, LABELS, CLASSES), HEADS, receipts=receipts, size=9)
    assert_drawn(receipts)


@pytest.mark.parametrize("short", [0, 1])
def test_a_head_that_was_not_paid_for_is_not_fitted(short):
    events = [head.event for head in HEADS]
    events[short] = Repeated(Gaussian(HEADS[short].noise_multiplier * 1.01), HEADS[short].steps)
    with pytest.raises(BudgetExceeded):
        fit_heads(Features.of(VALUES, LABELS, CLASSES), HEADS, receipts=[Receipt(e) for e in events], size=9)


def test_what_passes_the_door_costs_what_the_receipts_cost():
    recorder = Recorder()
    with tape(recorder):
        fit(Features.of(VALUES, LABELS, CLASSES))
    together = math.hypot(*(1 / entry.event.noise_multiplier for entry in recorder.entries))
    paid = math.hypot(*(math.sqrt(head.steps) / head.noise_multiplier for head in HEADS))
    assert together == pytest.approx(paid, rel=1e-9)
    assert [len(entry.inputs) for entry in recorder.entries] == [1, 1, 1]


def test_a_head_of_known_noise_costs_what_gaussian_privacy_says():
    head = Head(lr=1.0, steps=25, noise_multiplier=10.0)
    epsilon = privacy.epsilon(noise_multiplier=10.0, sample_rate=1.0, steps=25, delta=1e-5, accountant="gdp")
    assert epsilon == pytest.approx(privacy.gdp_epsilon(0.5, 1e-5))
    assert head.event == Repeated(Gaussian(10.0), 25)


def test_heads_that_are_alike_get_noise_of_their_own():
    twins = [Head(lr=1.0, steps=2, noise_multiplier=1.0)] * 3
    first, second, third = fit(Features.of(VALUES, LABELS, CLASSES), twins)
    again = fit(Features.of(VALUES, LABELS, CLASSES), twins)[0]
    distances = [float((a - b).norm()) for a, b in ((first, second), (second, third), (first, third), (first, again))]
    assert min(distances) > 0.05


@pytest.mark.parametrize("own", [False, True])
def test_noise_has_the_size_that_was_paid_and_is_independent_between_heads(own):
    heads = [
        Head(lr=1.0, steps=1, noise_multiplier=2.0, free_step=False),
        Head(lr=1.0, steps=1, noise_multiplier=5.0, threshold=0.25, free_step=False),
    ]
    nothing = Features.of(np.zeros((0, 20_000), np.float32), np.zeros(0, np.int64), 2)
    noises = [seeded_noise(1), seeded_noise(2)] if own else None
    first, second = (w.double().flatten() for w in fit(nothing, heads, size=10, noises=noises))
    for found, std in ((first, 0.2), (second, 0.125)):
        assert float(found.std()) == pytest.approx(std, rel=0.025)  # five standard errors of 40,000 numbers
        assert abs(float(found.mean())) < 5 * std / 200
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 5 / 200


def test_steps_get_noise_of_their_own():
    nothing = Features.of(np.zeros((0, 20_000), np.float32), np.zeros(0, np.int64), 2)
    heads = [Head(lr=1.0, steps=4, noise_multiplier=1.0, momentum=0.0)]
    (found,) = fit(nothing, heads, size=1)
    assert float(found.double().std()) == pytest.approx(2.0, rel=0.025)


def test_two_heads_from_one_noise_key_are_refused():
    with pytest.raises(InvalidInput, match="same state"):
        fit(Features.of(VALUES, LABELS, CLASSES), noises=[seeded_noise(7), seeded_noise(7)])
