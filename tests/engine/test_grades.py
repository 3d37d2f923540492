"""Norms against float64 for every grade of products that the device has: what is added never exceeds its norm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dpilot.engine.base import inflate
from dpilot.engine.layers.linear import gram, product
from dpilot.engine.single_backward import combine
from dpilot.numerics import precision
from dpilot.numerics.devices import use_policy
from tests.contracts.zoo import DEVICE
from tests.devices import CUDA
from tests.thin import thin

LARGE = [(8, 197, 768, 768), (8, 197, 768, 3072), (8, 512, 768, 768), (4, 64, 4096, 1024)]
SHAPES = [(8, 1, 768, 768), (8, 16, 256, 128), *(LARGE if DEVICE.type == "cuda" else [])]
GRADES = {"float32": (False, torch.float32), "tf32": (True, torch.float32), "bfloat16": (True, torch.bfloat16)}


@pytest.fixture(params=["products", "kernel"] if DEVICE.type == "cuda" else ["products"], autouse=True)
def _gram_matrices(request: pytest.FixtureRequest) -> Iterator[None]:
    """Gram norms from matrices that are written, and from ones that are not."""
    with use_policy(cuda=replace(CUDA, gram_programs=1 if request.param == "kernel" else 1 << 40)):
        yield


@pytest.fixture(params=GRADES if DEVICE.type == "cuda" else ["float32"])
def kind(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """The type of records, with TF32 allowed or not."""
    tf32, dtype = GRADES[request.param]
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    yield dtype
    torch.set_float32_matmul_precision(before)


def tokens(way: str, n: int, length: int, d: int, p: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    a, e = torch.randn(n, length, d), torch.randn(n, length, p)
    if way == "positive":
        return a.abs(), e.abs()
    if way == "cancelling" and length > 1:
        same = (torch.rand(n, 1, d) + 0.5).expand(n, length, d) + 1e-3 * a
        return same.contiguous(), e - e.mean(1, keepdim=True) + 1e-3 * torch.randn(n, 1, p)
    return a, e


@pytest.mark.parametrize("way", ["random", "positive", "cancelling"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_norms_bound_what_is_added_in_every_grade(way: str, shape: tuple[int, ...], kind: torch.dtype) -> None:
    n = shape[0]
    use = product(*(t.to(kind) for t in tokens(way, *shape)), n)
    a, e = use.inputs.double(), use.errors.double()
    squares, (kept,) = combine([use])
    ours = inflate(squares).double()
    true = torch.bmm(e.mT, a).flatten(1).norm(dim=1)
    added = [kept.weighted_sum(0.7371 * torch.eye(n)[i]).double().norm() / 0.7371 for i in range(n)]
    assert (ours >= torch.stack(added)).all()
    if way != "cancelling":
        assert (ours <= 1.05 * true).all()
    weights = torch.rand(n)
    error = (kept.weighted_sum(weights).double() - torch.einsum("n,ntp,ntd->pd", weights.double(), e, a)).norm()
    assert error <= precision.product_slack(shape[1], torch.float32, use.grade) * (weights * use.magnitude()).sum()


@pytest.mark.parametrize("way", ["random", "positive", "cancelling"])
@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)  # one token has no Gram norm
def test_gram_errors_stay_within_half_their_slack(way: str, shape: tuple[int, ...], kind: torch.dtype) -> None:
    use = product(*(t.to(kind) for t in tokens(way, *shape)), shape[0])
    a, e = use.inputs.double(), use.errors.double()
    with precision.use_grade(use.grade):
        found = gram(use.inputs, use.errors).double()
    true = (torch.bmm(a, a.mT) * torch.bmm(e, e.mT)).sum((1, 2))
    slack = precision.gram_slack(shape[2], shape[3], torch.float32, use.grade) * use.magnitude().double().square()
    assert ((found - true).abs() <= slack / 2).all()


def hidden(d: int, p: int, size: float, copies: int, turned: bool) -> tuple[Tensor, Tensor]:
    """Tokens (1, v, v, ..) and (1, -v, -v, ..) with opposite errors: the gradient is what a long sum would lose."""
    signs = torch.tensor([1.0, -1.0]).repeat(copies)
    tokens = torch.full((2 * copies, d), size) * signs[:, None]
    tokens[:, 0] = 1.0
    opposite = signs[:, None] * torch.rand(p)
    both = (opposite, tokens) if turned else (tokens, opposite)
    return both[0].expand(8, -1, -1).contiguous(), both[1].expand(8, -1, -1).contiguous()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("copies", [1, 8])
@pytest.mark.parametrize("power", thin([-12.52, -12.0, -12.25, -13.0, -14.0], 5))
@pytest.mark.parametrize(
    "widths", thin([[64, 64], [768, 64], [3072, 768], [768, 768], [20000, 64], [4096, 96]], 2), ids=str
)
def test_a_gradient_of_what_sums_lose_is_not_lost(
    widths: list[int], power: float, copies: int, turned: bool, kind: torch.dtype
) -> None:
    torch.manual_seed(0)
    use = product(*(t.to(kind) for t in hidden(*widths, 2.0**power, copies, turned)), 8)
    squares, (kept,) = combine([use])
    ours = inflate(squares).double()
    true = torch.bmm(use.errors.double().mT, use.inputs.double()).flatten(1).norm(dim=1)
    assert (ours >= true).all()
    for weight in (1.0, 0.7371):
        added = kept.weighted_sum(weight * torch.eye(8)[0]).double().norm() / weight
        assert ours[0] >= added
