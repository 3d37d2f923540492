"""Attacks on sums on a grid: a record's numbers that go by its place, and a caller's np.errstate."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

from dpilot.errors import InvalidInput
from dpilot.noise import HardenedNoise
from dpilot.numerics.grid import cut_rows
from dpilot.numerics.products import cut_products, products
from dpilot.privacy.receipt import Receipt
from dpilot.statistics import second_moment
from dpilot.transfer.features import Features
from dpilot.transfer.head_gradients import FeatureBlocks
from dpilot.transfer.probe import Head, fit_heads
from tests.statistics.helpers import Anything


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("width", [3, 50, 201, 257])
def test_a_row_has_the_same_product_at_every_place(width: int, threads: int) -> None:
    """By 512 rows of OpenBLAS the last 8 of a thread's share came otherwise: from 193 columns on with AVX-512."""
    generator = np.random.default_rng(width)
    row, others = generator.normal(size=(1, width)), generator.normal(size=(700, width))
    for weights in (generator.normal(size=(width, width)), generator.normal(size=(width, 10)) * 1e-9):
        with threadpool_limits(threads):
            for multiply, rows in ((products, row), (cut_products, cut_rows(row.copy()))):
                alone = multiply(rows, weights)
                found = multiply(np.repeat(rows, 700, axis=0), weights)
                assert (found == alone).all()
                among = others.copy() if multiply is products else cut_rows(others.copy())
                for place in (0, 511, 699):
                    among[place] = rows
                    assert (multiply(among, weights)[place] == alone).all()
                assert np.allclose(alone, rows @ weights, rtol=0, atol=1e-11 * np.abs(weights).max())


@pytest.mark.xfail(strict=False, reason="softmax takes the end of each of three threads' shares otherwise")
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


def test_a_radius_whose_grid_could_not_be_held_is_refused() -> None:
    """One row made all of it no number, and no row did not."""
    with pytest.raises(InvalidInput, match="radius"):
        second_moment(np.ones((1, 2)), radius=2e-157, noise_multiplier=1e6, receipt=Anything())
