"""Linear heads: what they compute, beside a loop over single records, and one head beside many."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpilot.errors import InvalidInput
from dpilot.noise import seeded_noise
from dpilot.numerics import precision
from dpilot.privacy.receipt import Receipt
from dpilot.transfer import head_gradients
from dpilot.transfer.features import Features
from dpilot.transfer.probe import Head, fit_heads, predict

GENERATOR = np.random.default_rng(3)
COUNT, WIDTH, CLASSES = 40, 7, 3
VALUES = (GENERATOR.normal(size=(COUNT, WIDTH)) * GENERATOR.uniform(0.1, 1, size=(COUNT, 1))).astype(np.float32)
LABELS = GENERATOR.integers(CLASSES, size=COUNT)
HEADS = [
    Head(lr=0.5, steps=6, noise_multiplier=0.7),
    Head(lr=2.0, steps=3, noise_multiplier=1.5, momentum=0.5, threshold=0.3),
    Head(lr=1.0, steps=6, noise_multiplier=4.0, momentum=0.0, free_step=False),
    Head(lr=0.1, steps=1, noise_multiplier=0.1, threshold=10.0),
]


def features(values=VALUES, labels=LABELS):
    return Features.of(values, labels, CLASSES)


def fit(heads, data=None, size=50, seeds=None, **options):
    seeds = range(len(heads)) if seeds is None else seeds
    return fit_heads(
        features() if data is None else data,
        heads,
        receipts=[Receipt(head.event) for head in heads],
        size=size,
        noises=[seeded_noise(seed) for seed in seeds],
        **options,
    )


def by_loop(head, seed, size=50):
    """The same head by autograd on single records in float64, clipped one by one."""
    source, weights = seeded_noise(seed), torch.zeros(WIDTH, CLASSES, dtype=torch.float64)
    velocity, limit = torch.zeros_like(weights), head.threshold * (1 - head_gradients._shave(CLASSES))
    for _ in range(head.steps):
        total = torch.zeros_like(weights)
        for row, label in zip(VALUES, LABELS, strict=True):
            parameter = weights.clone().requires_grad_()
            scores = torch.from_numpy(row).double() @ parameter
            loss = torch.nn.functional.cross_entropy(scores[None], torch.tensor([label]))
            (gradient,) = torch.autograd.grad(loss, parameter)
            total += gradient * min(1.0, limit / float(gradient.norm()))
        zeros = torch.zeros(CLASSES, WIDTH, dtype=torch.float64)
        noise = source.gaussian([zeros], bound=head.threshold, noise_multiplier=1.0)[0].T
        velocity = head.momentum * velocity + (total + noise * head.noise_multiplier) / size
        weights = weights - head.lr * velocity
    return weights - head.lr * head.momentum * velocity if head.free_step else weights


def test_heads_are_what_a_loop_over_single_records_gives():
    for seed, (head, found) in enumerate(zip(HEADS, fit(HEADS), strict=True)):
        assert torch.allclose(found.double(), by_loop(head, seed), atol=2e-5), head


def test_some_records_are_clipped_and_some_are_not():
    norms = np.linalg.norm(VALUES, axis=1) * np.sqrt((1 - 1 / CLASSES) ** 2 + (CLASSES - 1) / CLASSES**2)
    assert 0.2 < np.mean(norms > 1.0) < 0.8


@pytest.mark.parametrize("place", range(len(HEADS)))
def test_one_head_alone_is_the_head_among_others(place):
    (alone,) = fit([HEADS[place]], seeds=[place])
    assert torch.allclose(alone, fit(HEADS)[place], atol=1e-5)


@pytest.fixture
def matmul_precision():
    """Put back by hand: the settings of a backend are no attributes that could be deleted."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("chosen", ["highest", "high"])
def test_a_device_gives_the_same_heads(chosen, matmul_precision):
    torch.set_float32_matmul_precision(chosen)
    heads = [replace(head, steps=4 * head.steps, noise_multiplier=1e-3) for head in HEADS]
    for there, here in zip(fit(heads, device="cuda"), fit(heads), strict=True):
        assert there.device.type == "cpu"
        assert torch.allclose(there, here, atol=0.05)
    assert torch.get_float32_matmul_precision() == chosen


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_what_a_device_multiplies_fits_tf32_and_the_bound():
    records = head_gradients.FeatureBlocks.of(features().to("cuda"))
    assert not bool((records.values.view(torch.int32) & 0x1FFF).any())
    one = head_gradients.FeatureBlocks.of(features().take([0]).to("cuda"))
    limits = head_gradients.residual_limits(one.lengths, torch.full((1,), 0.1, device="cuda"), CLASSES, one.grade)
    sent = one.clip_and_sum(torch.zeros(1, CLASSES, WIDTH, device="cuda"), limits)
    assert 0.099 < float(sent.double().norm()) <= 0.1


def test_sums_of_numbers_cut_for_tensor_cores_are_almost_the_same():
    weights, limits = torch.randn(2, CLASSES, WIDTH, generator=torch.Generator().manual_seed(5)), torch.ones(2)
    before = torch.get_float32_matmul_precision()
    sums = []
    for grade in (precision.FULL, precision.TF32):
        blocks = head_gradients.FeatureBlocks.of(features(), grade=grade)
        with precision.use_grade(grade):
            sums.append(blocks.clip_and_sum(weights, blocks.limits(limits)))
    assert torch.get_float32_matmul_precision() == before
    assert not torch.equal(*sums)
    assert torch.allclose(*sums, atol=0.02)


def test_the_order_of_heads_does_not_matter():
    order = [2, 0, 3, 1]
    shuffled = fit([HEADS[j] for j in order], seeds=order)
    straight = fit(HEADS)
    for place, j in enumerate(order):
        assert torch.allclose(shuffled[place], straight[j], atol=1e-5)


@pytest.mark.parametrize("block", [7, 128, 256])  # the last in pieces that float32 adds up
def test_blocks_of_rows_add_up(block):
    made = torch.Generator().manual_seed(4)
    whole = head_gradients.FeatureBlocks.of(
        Features.of(torch.randn(300, WIDTH, generator=made), torch.randint(CLASSES, (300,), generator=made), CLASSES)
    )
    weights, limits = torch.randn(2, CLASSES, WIDTH, generator=made), whole.limits(torch.ones(2))
    sums = [each.clip_and_sum(weights, limits) for each in (whole, replace(whole, block=block))]
    assert torch.allclose(*sums, atol=1e-5)


@pytest.mark.parametrize("heads", [1, 7, 100])
@pytest.mark.parametrize("size", [0.3, 1, 200, 20_000, 1e6])
def test_blocks_are_few_and_alike(size, heads):
    rows = head_gradients.block_rows(torch.empty(0, 64), size, 10 * heads)
    most = head_gradients.block_rows(torch.empty(0, 64), None, 10 * heads)
    assert rows % head_gradients._DEPTH == 0
    assert rows <= most
    assert math.ceil(size / rows) * rows < size + 2 * math.sqrt(size) + rows
    assert math.ceil(size / rows) <= math.ceil((size + 2 * math.sqrt(size)) / most)


def test_records_filled_up_beforehand_add_up():
    records = head_gradients.FeatureBlocks.of(features())
    rows, labels = head_gradients.pad_to_blocks(features().values, features().labels, 64)
    assert len(rows) % 64 == 0
    assert len(rows) > COUNT
    longer = head_gradients.FeatureBlocks.of(Features(rows, labels, CLASSES))
    weights = torch.randn(2, CLASSES, WIDTH, generator=torch.Generator().manual_seed(3))
    sums = [
        each.clip_and_sum(weights, head_gradients.residual_limits(each.lengths, torch.ones(2), CLASSES))
        for each in (records, longer)
    ]
    assert torch.allclose(*sums, atol=1e-6)


@pytest.mark.parametrize("size", [0.3, 1, 2048, 47_500.5, 60_000, 1e6, 1e9])
def test_a_block_of_an_accelerator_holds_what_coins_may_bring(size):
    rows = head_gradients.accelerator_rows(size)
    assert rows % head_gradients._DEPTH == 0
    assert rows <= head_gradients._ACCELERATED_ROWS
    blocks = math.ceil(size / head_gradients._ACCELERATED_ROWS)
    assert (blocks + 1) * rows >= size + 6 * math.sqrt(size)


def test_a_record_is_multiplied_alike_whatever_the_number_of_records():
    records = head_gradients.FeatureBlocks.of(features())
    pieces = records.gradients(torch.zeros(1, CLASSES, WIDTH), torch.ones(1, COUNT))
    assert [len(piece.norms) for piece in pieces] == [records.block]


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


def test_the_divisor_is_the_declared_size():
    head = Head(lr=1.0, steps=1, noise_multiplier=1.0)
    (half,), (whole,) = fit([head], size=50), fit([head], size=100)
    assert torch.allclose(half, 2 * whole, rtol=1e-5)


def test_the_free_step_goes_on_along_the_momentum():
    plain, free = (Head(lr=1.0, steps=1, noise_multiplier=1.0, free_step=free) for free in (False, True))
    (before,), (after,) = fit([plain]), fit([free])
    assert torch.allclose(after, 1.9 * before, rtol=1e-5)


def test_weights_have_the_shape_and_type_that_is_promised():
    for found in fit(HEADS):
        assert found.shape == (WIDTH, CLASSES)
        assert found.dtype == torch.float32
        assert not found.requires_grad


def test_heads_learn_what_can_be_learned():
    centers = GENERATOR.normal(size=(CLASSES, WIDTH))
    labels = GENERATOR.integers(CLASSES, size=2000)
    data = Features.of(centers[labels] + 0.3 * GENERATOR.normal(size=(2000, WIDTH)), labels, CLASSES).unit()
    heads = [Head(lr=lr, steps=20, noise_multiplier=20.0) for lr in (0.5, 2.0)]
    for weights in fit_heads(data, heads, receipts=[Receipt(head.event) for head in heads], size=2000):
        assert (predict(data, weights) == data.labels).double().mean() > 0.9


def test_predict_takes_features_and_values():
    (weights,) = fit(HEADS[:1])
    assert torch.equal(predict(features(), weights), predict(features().values, weights))
    assert torch.equal(predict(features(), weights), (features().values @ weights).argmax(1))
    assert predict(features().take([]), weights).shape == (0,)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lr": 0.0}, "lr is 0.0"),
        ({"steps": 0}, "steps is 0"),
        ({"noise_multiplier": 0.0}, "noise_multiplier is 0.0"),
        ({"momentum": 1.0}, "momentum is 1.0"),
        ({"threshold": -1.0}, "threshold is -1.0"),
        ({"threshold": 2e37}, r"threshold is 2e\+37: expected 1e-30 to 1e30"),
        ({"threshold": 1e-44}, "threshold is 1e-44: expected 1e-30 to 1e30"),
        ({"threshold": 1e-20, "noise_multiplier": 1e-20}, "threshold times noise_multiplier is 1e-40"),
    ],
)
def test_a_recipe_that_cannot_be_run_is_refused(wrong, message):
    with pytest.raises(InvalidInput, match=message):
        Head(**{"lr": 1.0, "steps": 1, "noise_multiplier": 1.0} | wrong)


def test_every_head_needs_its_own_receipt_and_noise():
    head = HEADS[3]
    with pytest.raises(InvalidInput, match="number of receipts is 1: expected 2"):
        fit_heads(features(), [head, head], receipts=[Receipt(head.event)], size=50)
    with pytest.raises(InvalidInput, match="number of noises is 1: expected 2"):
        fit_heads(features(), [head] * 2, receipts=[Receipt(head.event)] * 2, size=50, noises=[seeded_noise(0)])
    with pytest.raises(InvalidInput, match="heads is empty"):
        fit_heads(features(), [], receipts=[], size=50)
    with pytest.raises(InvalidInput, match="size is 0"):
        fit([head], size=0)
