"""Open faults of sums on a grid: a record's numbers that go by its place, and a caller's np.errstate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from dpilot._arrays import Floats
from dpilot.linear.row_gradients import GridRows, HistogramClip, gradient_step
from dpilot.linear.rows import MemoryRows
from dpilot.noise import HardenedNoise
from dpilot.numerics.products import products
from dpilot.privacy.receipt import Receipt
from dpilot.statistics import second_moment
from dpilot.tape import tape
from dpilot.transfer.features import Features
from dpilot.transfer.head_gradients import FeatureBlocks
from dpilot.transfer.probe import Head, fit_heads
from tests.statistics.helpers import Anything
from tests.tapes import NoiseFree

WIDE = pytest.mark.skipif(
    not any(each.get("architecture") == "SkylakeX" for each in threadpool_info()),
    reason="OpenBLAS kernels of processors with AVX-512: others differ with three threads or more",
)
WIDTH = 201  # columns: more than 192, and no multiple of 8
SIZE = 2.0**-21  # the grid of features whose row is hardly shorter than 1


@WIDE
@pytest.mark.xfail(strict=True, reason="the last 8 rows of a thread's share come from another kernel")
def test_a_row_has_the_same_product_at_every_place() -> None:
    generator = np.random.default_rng(0)
    weights, row = generator.normal(size=(WIDTH, WIDTH)), generator.normal(size=(1, WIDTH))
    with threadpool_limits(1):
        found = products(np.repeat(row, 512, axis=0), weights)
    assert (found == found[0]).all()


def _edge() -> tuple[Floats, Floats]:
    """A row and a matrix whose product lies on either side of a grid point, by the row's place."""
    generator = np.random.default_rng(0)
    weights = generator.normal(size=(WIDTH, WIDTH))
    for _ in range(200):
        row = generator.normal(size=WIDTH)
        row /= np.linalg.norm(row @ weights) * (1 + 1e-3)
        one, other = _at_places(row, weights)
        column = int(np.argmax(np.abs(one - other) * (np.abs(one) > 2**-6)))
        point = np.rint(abs(one[column]) / SIZE) * SIZE
        for ulps in range(-40, 41):
            moved = weights.copy()
            moved[:, column] *= point / abs(one[column]) * (1 + ulps * 2.0**-52)
            one_cut, other_cut = (np.trunc(each[column] / SIZE) for each in _at_places(row, moved))
            if one_cut != other_cut:
                return row, moved
    raise AssertionError("no row at an edge was found")


def _at_places(row: Floats, weights: Floats) -> tuple[Floats, Floats]:
    found = products(np.repeat(row[None], 512, axis=0), weights)
    return found[0], found[511]


@WIDE
@pytest.mark.xfail(strict=True, reason="all other records move one place on, some into another bin of norms")
def test_a_null_row_in_front_moves_its_own_bin_alone() -> None:
    with threadpool_limits(2):
        row, weights = _edge()

        def sums(table: Floats) -> list[Floats]:
            white = GridRows.of(MemoryRows.of(table), lambda features: products(features, weights))
            seen = NoiseFree()
            terms: dict[str, Any] = {"noise_multiplier": 5.0, "receipt": Anything(), "noise": HardenedNoise()}
            with tape(seen):
                gradient_step(white, np.zeros((WIDTH, 1)), HistogramClip(least, 0.176), **terms)
            return list(seen.entries[0].inputs)

        found = products(np.repeat(row[None], 512, axis=0), weights)
        cut = np.trunc(found / SIZE) * SIZE
        lengths = np.sqrt(np.einsum("ij,ij->i", cut, cut))
        least = float(lengths.min())
        table = np.zeros((512 * 64, WIDTH + 1))
        for place in np.flatnonzero((lengths[:-1] == least) & (lengths[1:] > least)):
            table[place::512] = np.append(row, 1.0)
        one, other = sums(table), sums(np.concatenate([np.zeros((1, WIDTH + 1)), table]))
    moved = sum(float(np.sum((a - b) ** 2)) for a, b in zip(one, other, strict=True))
    assert moved <= 1 + 0.176**2  # 192 records of 32,768 change their bin: 47 bounds


@pytest.mark.xfail(strict=True, reason="softmax takes the end of each thread's share by another kernel")
def test_a_record_of_a_head_has_the_same_residual_at_every_place() -> None:
    generator, threads = np.random.default_rng(0), torch.get_num_threads()
    row = generator.normal(size=(1, 768)).astype(np.float32)
    torch.set_num_threads(3)
    try:
        blocks = FeatureBlocks.of(Features.of(np.repeat(row, 1280, 0), np.zeros(1280, dtype=np.int64), 10), exact=True)
        for _ in range(20):
            weights = torch.from_numpy(generator.normal(size=(1, 10, 768)) / 27).float()
            (block,) = blocks.gradients(weights, blocks.limits(torch.ones(1)))
            residuals = block.residuals  # type: ignore[attr-defined]
            assert (residuals == residuals[..., :1]).all()
    finally:
        torch.set_num_threads(threads)


@pytest.mark.xfail(strict=True, reason="the neighbour of a sum of 0 is denormal: join_limbs is under no errstate")
@pytest.mark.parametrize("name", ["moments", "heads"])
def test_no_sum_of_zero_raises_whatever_a_caller_has_set(name: str) -> None:
    values = np.array([[1.0, 0.0], [2.0, 0.0]])
    head = Head(lr=1.0, steps=1, noise_multiplier=3.0)
    with np.errstate(all="raise"):
        if name == "moments":
            second_moment(values, radius=1.0, noise_multiplier=1.0, receipt=Anything())
        else:
            features = Features.of(values, np.zeros(2, dtype=np.int64), 2)
            fit_heads(features, [head], receipts=[Receipt(head.event)], size=2, noises=[HardenedNoise()])


@pytest.mark.xfail(strict=True, reason="the grid of products is below the least float")
@np.errstate(all="ignore")
def test_moments_within_a_tiny_radius_are_numbers() -> None:
    assert np.isfinite(second_moment(np.ones((1, 2)), radius=2e-157, noise_multiplier=1e6, receipt=Anything())).all()
