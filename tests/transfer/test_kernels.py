"""The kernels of linear heads against float64 and against plain operations; how their work is cut up."""

from __future__ import annotations

import pytest
import torch

from dpilot.numerics import precision
from dpilot.transfer import head_gradients, head_kernels
from dpilot.transfer.features import Features
from dpilot.transfer.head_gradients import FeatureBlocks, HeadGradients, residual_limits
from dpilot.transfer.joint import clip_heads

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEPTH = head_gradients._DEPTH


def test_nothing_runs_on_the_cpu():
    zeros = torch.zeros(1, 3, 256, device="cpu")
    assert head_kernels.clip_residuals(zeros, torch.zeros(256, dtype=torch.long, device="cpu"), zeros[:, 0]) is None
    assert head_kernels.deep_product(zeros[0], torch.zeros(5, 256, device="cpu").T, DEPTH) is None


@pytest.mark.parametrize("rows", [1, 10, 16, 17, 48, 49, 80, 81, 100, 161, 1000])
def test_two_tiles_hold_an_equal_share_of_rows(rows):
    tiles = head_kernels.tiles_of(rows)
    groups = -(-rows // sum(tiles))
    assert -(-rows // groups) <= sum(tiles)
    assert groups == -(-rows // 80)


@pytest.mark.parametrize("pieces", [1, 2, 3, 16, 48, 416, 992])
@pytest.mark.parametrize("programs", [1, 20, 300])
def test_every_piece_has_one_program(pieces, programs):
    each = head_kernels.pieces_of(pieces, programs)
    assert pieces % each == 0
    assert each == 1 or pieces // each * programs >= head_kernels._PROGRAMS


@on_gpu
@pytest.mark.parametrize(
    ("rows", "length", "width"),
    [(10, 2048, 64), (70, 53_248, 1280), (33, 512, 100), (100, 256, 70), (170, 128, 10), (3, 384, 5)],
)
def test_a_deep_product_is_that_of_float64(rows, length, width):
    torch.manual_seed(rows)
    left, right = (
        precision.truncate_tf32(torch.randn(shape, device="cuda")) for shape in ((rows, length), (width, length))
    )
    made, exact = head_kernels.deep_product(left, right.T, DEPTH), left.double() @ right.double().T
    assert made is not None
    assert made.dtype == torch.float64
    assert float((made - exact).abs().max()) < 1e-6 * float(exact.abs().max()) * length**0.5


@on_gpu
def test_no_more_than_the_depth_is_added_in_float32():
    """2^24 and then ones: float32 loses each of them, float64 none."""
    left, right = torch.ones(3, 4 * DEPTH, device="cuda"), torch.ones(5, 4 * DEPTH, device="cuda")
    right[:, :DEPTH] = 2.0**24 / DEPTH
    made = head_kernels.deep_product(left, right.T, DEPTH)
    assert made is not None
    assert bool((made == 2.0**24 + 3 * DEPTH).all())


@on_gpu
@pytest.mark.parametrize(("heads", "classes", "records"), [(1, 10, 300), (7, 10, 4096), (2, 3, 100), (2, 100, 65)])
def test_residuals_are_clipped_as_plainly_and_cut(heads, classes, records):
    torch.manual_seed(classes)
    scores = 3 * torch.randn(heads, classes, records, device="cuda")
    scores[0, 1, 3], scores[0, 1, 6], scores[0, :, 8], scores[0, :, 9] = torch.nan, torch.inf, -torch.inf, 1e30
    labels = torch.randint(classes, (records,), device="cuda")
    limits = (1.5 * torch.rand(heads, records + 50, device="cuda"))[:, 7 : 7 + records]
    limits[0, 11], limits[0, 12] = 0.0, 1e-15
    made = head_kernels.clip_residuals(scores, labels, limits)
    rows = torch.empty(records, 0, device="cuda")
    gradients = HeadGradients(rows, labels, limits, scores, product=lambda residuals, rows, kind: residuals)
    plain = gradients.clip_and_sum(clip_heads, None)[0].float()
    assert made is not None
    assert not bool((made.view(torch.int32) & 0x1FFF).any())
    assert torch.allclose(made, plain, rtol=2e-3, atol=1e-6)
    assert not made[0, :, [3, 6, 8, 11]].any()
    allowed = limits.double() * (1 + (classes + 16) * 2.0**-24)
    assert bool((made.double().norm(dim=1) <= allowed).all())


@on_gpu
def test_many_classes_are_left_to_plain_operations():
    scores = torch.zeros(1, 129, 8, device="cuda")
    assert head_kernels.clip_residuals(scores, torch.zeros(8, dtype=torch.long, device="cuda"), scores[:, 0]) is None


@on_gpu
@pytest.mark.parametrize("heads", [1, 7])
def test_sums_by_kernels_are_those_of_plain_operations(heads, monkeypatch):
    torch.manual_seed(heads)
    features = Features.of(torch.randn(3000, 70), torch.randint(10, (3000,)), 10).to("cuda")
    records, weights = FeatureBlocks.of(features, size=3000.0), torch.randn(heads, 10, 70, device="cuda")
    limits = residual_limits(records.lengths, torch.ones(heads, device="cuda"), 10, records.grade)
    with precision.use_grade(records.grade):
        made = records.clip_and_sum(weights, limits)
        monkeypatch.setattr(head_kernels, "runs_on", lambda values: False)
        plain = records.clip_and_sum(weights, limits)
    assert not torch.equal(made, plain)
    assert torch.allclose(made, plain, rtol=1e-3, atol=1e-2)
