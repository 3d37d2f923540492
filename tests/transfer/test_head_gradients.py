"""The sums of linear heads in the arithmetic of tensor cores, written out: what one record can move there."""

from __future__ import annotations

import pytest
import torch

from dpilot.numerics import precision
from dpilot.transfer import head_gradients
from dpilot.transfer.features import Features
from dpilot.transfer.head_gradients import FeatureBlocks, residual_limits

CLASSES, DEPTH, DROPPED_BITS = 3, head_gradients._DEPTH, 0x1FFF


def cut_off(values, largest):
    """Towards zero, to 24 bits counted from the highest bit of ``largest``."""
    _, exponents = torch.frexp(largest.abs().clamp_min(2.0**-126))
    units = torch.ldexp(torch.ones_like(largest), exponents - 24)
    return torch.trunc(values / units) * units


def on_cores(left, right, group):
    """left (m, b) times right (b, d): exact products, ``group`` at a time aligned with the sum so far and cut off.

    The addition of Fasi et al., "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science 2021, with none of
    the extra bits that newer ones have.
    """
    total = torch.zeros(len(left), right.shape[1], dtype=torch.float64)
    for start in range(0, len(right), group):
        place = slice(start, start + group)
        products = left[:, place, None].double() * right[None, place].double()
        largest = torch.maximum(total.abs(), products.abs().amax(1))
        added = cut_off(total, largest) + cut_off(products, largest[:, None].expand_as(products)).sum(1)
        total = cut_off(added, added)
    return total


def one_way(width, seed):
    """As many records as float32 adds up, all longer than the threshold and about in one direction."""
    generator = torch.Generator().manual_seed(seed)
    row = torch.randn(width, generator=generator)
    lengths = 2 + seed % 3 * torch.rand(DEPTH, 1, generator=generator)
    return lengths * row / row.norm() + 0.1 * (seed % 2) * torch.randn(DEPTH, width, generator=generator)


def blocks_of(values, labels, **options):
    return FeatureBlocks.of(Features.of(values, labels, CLASSES), grade=precision.TF32, **options)


def summed(values, labels, product=head_gradients._product):
    records = blocks_of(values, labels, product=product)
    limits = residual_limits(records.lengths, torch.ones(1, device=values.device), CLASSES, records.grade)
    with precision.use_grade(records.grade):
        return records.clip_and_sum(torch.zeros(1, CLASSES, values.shape[1], device=values.device), limits)


@pytest.mark.parametrize("group", [4, 8, 16])
@pytest.mark.parametrize("width", [3, 64])
def test_a_record_moves_a_sum_on_tensor_cores_by_no_more_than_the_threshold(width, group):
    def product(left, right, kind):
        return on_cores(left, right, group)

    for seed in range(3):
        values, labels = one_way(width, seed), torch.zeros(DEPTH, dtype=torch.long)
        without = torch.where(torch.arange(DEPTH) == seed * 40, -1, labels)
        moved = float((summed(values, labels, product) - summed(values, without, product)).norm())
        assert 0.99 < moved <= 1


def test_what_is_taken_off_is_more_than_twice_what_cutting_off_was_seen_to_do():
    seen = []
    for group, width, seed in [(g, w, s) for g in (8, 16) for w in (3, 16) for s in range(3)]:
        values, labels = one_way(width, seed), torch.zeros(DEPTH, dtype=torch.long)
        without = torch.where(torch.arange(DEPTH) == 0, -1, labels)
        moves = []
        for product in (lambda left, right, kind, g=group: on_cores(left, right, g), in_float64):
            moves.append(summed(values, labels, product) - summed(values, without, product))
        seen.append(float((moves[0] - moves[1]).norm()))
    assert 1e-6 < max(seen) < head_gradients._CORES_SHAVE / 2


def in_float64(left, right, kind):
    return left.double() @ right.double()


CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"))


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("width", [3, 64, 768])
def test_sums_of_a_device_are_off_by_less_than_half_of_what_is_taken_off(width, device):
    product, labels = head_gradients._product, torch.zeros(DEPTH, dtype=torch.long)
    without = torch.where(torch.arange(DEPTH) == 0, -1, labels)
    for seed in range(6):
        values, moves = one_way(width, seed).to(device), []
        for one in (product, in_float64):
            moves.append(summed(values, labels, one) - summed(values, without, one))
        assert 0 < float((moves[0] - moves[1]).norm()) < head_gradients._CORES_SHAVE / 2
        assert 0.99 < float(moves[0].norm()) <= 1


def test_both_operands_of_a_sum_fit_tensor_cores():
    operands = []

    def kept(left, right, kind):
        operands.extend((left, right))
        return left @ right

    summed(one_way(5, 1), torch.arange(DEPTH) % CLASSES, kept)
    assert len(operands) == 2
    for numbers in operands:
        assert float(numbers.abs().sum()) > 0
        assert not bool((numbers.view(torch.int32) & DROPPED_BITS).any())


def test_lengths_are_those_of_the_numbers_that_are_multiplied():
    values = one_way(7, 1)
    records = blocks_of(values, torch.zeros(DEPTH))
    assert torch.equal(records.lengths, records.values.double().norm(dim=1))
    assert not torch.equal(records.values, values)


def test_more_is_taken_off_where_sums_are_cut_off():
    full, cores = (
        residual_limits(torch.ones(1).double(), torch.ones(1), 10, g) for g in (precision.FULL, precision.TF32)
    )
    assert float(cores) == pytest.approx(1 - 6 * 2.0**-10, abs=1e-5)
    assert float(full) == pytest.approx(1 - 2.0**-9, abs=1e-5)


@pytest.mark.parametrize("width", [5, 40_000])
def test_no_more_than_the_depth_is_added_in_float32(width):
    """2^24 and then ones: float32 loses each of them, float64 none."""
    left, right = torch.ones(1, 4 * DEPTH), torch.ones(4 * DEPTH, width)
    right[:DEPTH] = 2.0**24 / DEPTH
    assert bool((head_gradients._product(left, right, torch.float64) == 2.0**24 + 3 * DEPTH).all())


def test_null_records_have_norms_that_no_rule_weighs():
    values = torch.tensor([[1.0, 2.0], [torch.nan, 1.0], [3.0, 4.0]])
    blocks = FeatureBlocks.of(Features(values, torch.tensor([0, 1, -1]), CLASSES), grade=precision.TF32)
    limits = residual_limits(blocks.lengths, torch.ones(1), CLASSES)
    (gradients,) = blocks.gradients(torch.zeros(1, CLASSES, 2), limits)
    assert torch.isfinite(gradients.norms[:3, 0]).tolist() == [True, False, False]
