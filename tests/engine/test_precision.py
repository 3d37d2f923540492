"""The norm handed out bounds what is summed, rounding included, and is tight."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dpilot.engine import per_sample
from dpilot.engine.base import inflate
from dpilot.engine.layers.base import Dense, Use
from dpilot.engine.layers.conv import Correlation, Geometry
from dpilot.engine.layers.embedding import Lookups
from dpilot.engine.layers.linear import Product, gram
from dpilot.engine.single_backward import combine
from dpilot.numerics import precision
from tests.contracts.zoo import DEVICE
from tests.thin import thin


def cancelling(n: int, tokens: int, d: int, p: int, part: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Tokens with the same input whose output gradients add up to a small part of their size."""
    torch.manual_seed(seed)
    a = (torch.rand(n, 1, d) + 0.5).expand(n, tokens, d) + part * torch.randn(n, tokens, d)
    e = torch.randn(n, tokens, p)
    e = e - e.mean(1, keepdim=True) + part * torch.randn(n, 1, p)
    return a.contiguous(), e


def repeated(n: int, tokens: int, d: int, p: int, part: float) -> tuple[Tensor, Tensor]:
    """Half the tokens repeat one gradient, half its near negative: rounding errors do not average out."""
    torch.manual_seed(0)
    e = torch.randn(n, 1, p)
    halves = [e.expand(n, tokens // 2, p), -(e * (1 + part)).expand(n, tokens // 2, p)]
    return torch.rand(n, 1, d).expand(n, tokens, d).contiguous(), torch.cat(halves, 1).contiguous()


def summed_norms(use: Use, n: int) -> Tensor:
    """Norms, in float64, of what the sum really adds for each sample."""
    rows = [use.weighted_sum(torch.eye(n)[i]).double().square().sum().sqrt() for i in range(n)]
    return torch.stack(rows)


def true_norms(a: Tensor, e: Tensor) -> Tensor:
    return torch.bmm(e.double().mT, a.double()).flatten(1).norm(dim=1)


MAKERS = [cancelling, repeated]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("part", [1.0, 1e-2, 1e-4, 1e-6, 0.0])
@pytest.mark.parametrize(("tokens", "d", "p"), [(4, 64, 64), (16, 256, 128), (64, 512, 512)])
def test_norm_bounds_what_is_summed_when_tokens_cancel(make, part: float, tokens: int, d: int, p: int) -> None:
    a, e = make(6, tokens, d, p, part)
    squares, (use,) = combine([Product(a, e)])
    ours = inflate(squares).double()
    assert (ours >= summed_norms(use, 6)).all()
    assert (ours >= true_norms(a, e) * (1 - 1e-6) - 1e-7 * Product(a, e).magnitude()).all()


ON_CPU = pytest.mark.skipif(DEVICE.type != "cpu", reason="on a GPU nobody looks whether a bound is loose")


@ON_CPU
@pytest.mark.parametrize("part", [1.0, 1e-2, 1e-3])
def test_norm_is_tight_when_tokens_cancel(part: float) -> None:
    a, e = cancelling(6, 16, 256, 128, part)
    ours = inflate(combine([Product(a, e)])[0]).double()
    assert (ours <= true_norms(a, e) * 1.02).all()


@ON_CPU
def test_the_plain_gram_norm_would_be_wrong_here() -> None:
    """Why the bound exists: without it the norm is off by more than sixty times."""
    a, e = cancelling(6, 16, 256, 128, 1e-5)
    true = true_norms(a, e)
    plain = gram(a, e).clamp_min(0).sqrt().double()
    assert (torch.maximum(plain / true, true / plain.clamp_min(1e-30))).max() > 60
    ours = inflate(combine([Product(a, e)])[0]).double()
    assert (ours / true).max() < 2
    assert (ours >= true).all()


@pytest.mark.parametrize(("tokens", "d", "p"), [(8, 64, 64), (64, 768, 768), (128, 256, 1024), (256, 2048, 1024)])
@pytest.mark.parametrize("positive", [False, True])
def test_gram_error_stays_within_the_documented_slack(tokens: int, d: int, p: int, positive: bool) -> None:
    torch.manual_seed(0)
    a, e = torch.randn(4, tokens, d), torch.randn(4, tokens, p)
    a, e = (a.abs(), e.abs()) if positive else (a, e)
    error = (gram(a, e).double() - true_norms(a, e).square()).abs()
    allowed = precision.gram_slack(d, p, torch.float32) * Product(a, e).magnitude().double().square()
    assert (error <= allowed / 2).all()


def test_slack_of_ordinary_tokens_is_small() -> None:
    torch.manual_seed(0)
    a, e = torch.randn(4, 64, 768), torch.randn(4, 64, 768)
    ours = inflate(combine([Product(a, e)])[0]).double()
    assert (ours / true_norms(a, e) < 1 + 2e-3).all()


@pytest.mark.parametrize(("part", "tight"), [(1.0, 1.001), (1e-3, 1.02), (1e-5, 1.2)])
def test_convolution_norms_bound_what_is_summed(part: float, tight: float) -> None:
    a, e = cancelling(5, 9, 32, 64, part)
    use = as_convolution(a, e)
    squares, (kept,) = combine([use])
    assert (inflate(squares).double() >= summed_norms(kept, 5)).all()
    if DEVICE.type == "cpu":
        assert (inflate(squares).double() <= tight * true_norms(a, e)).all()


def as_convolution(a: Tensor, e: Tensor) -> Correlation:
    n, _, d = a.shape
    geometry = Geometry((1, 1), (1, 1), (0, 0), (1, 1), 1)
    inputs, errors = (t.mT.reshape(n, -1, 3, 3).contiguous() for t in (a, e))
    assert inputs.shape[1] == d
    return Correlation(inputs, errors, geometry, n)


@pytest.mark.parametrize("kind", [Product, as_convolution])
def test_a_cancelling_sample_does_not_move_the_norms_of_others(kind) -> None:
    a, e = cancelling(5, 9, 64, 64, 1.0)
    bad_a, bad_e = cancelling(5, 9, 64, 64, 1e-5)
    mixed_a, mixed_e = a.clone(), e.clone()
    mixed_a[2], mixed_e[2] = bad_a[2], bad_e[2]
    clean, mixed = (combine([kind(*pair)])[0] for pair in ((a, e), (mixed_a, mixed_e)))
    others = torch.arange(5) != 2
    assert torch.equal(clean[others], mixed[others])
    assert mixed[2] < clean[2] * (1e-6 if DEVICE.type == "cpu" else 1e-3)


def test_uses_of_different_kinds_bound_what_is_summed() -> None:
    a, e = cancelling(5, 8, 16, 12, 1e-3)
    tokens, owners = torch.arange(40) % 12, torch.arange(5).repeat_interleave(8)
    lookups = Lookups(tokens, owners, torch.randn(40, 16), 5, 12)
    squares, uses = combine([Product(a, e), lookups])
    added = [sum(u.weighted_sum(torch.eye(5)[i]) for u in uses).double().norm() for i in range(5)]
    assert (inflate(squares).double() >= torch.stack(added)).all()
    whole = torch.stack([sum(u.gradients(i, i + 1)[0].double() for u in uses).norm() for i in range(5)])
    assert (inflate(squares).double() <= whole * 1.001).all()


def test_full_precision_is_restored() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with precision.use_full_precision():
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_inflation_is_a_few_units_in_the_last_place() -> None:
    assert 1.0 < float(inflate(torch.ones(1))) < 1 + 1e-5
    assert math.isnan(float(inflate(torch.tensor([math.nan]))))


@pytest.mark.parametrize("value", [0.3, 1 / 3, 0.1])
@pytest.mark.parametrize("width", [2**12, 2**16, 2**20, 2**22 + 7])
def test_norms_of_equal_numbers_do_not_lean(width: int, value: float) -> None:
    rows = torch.full((2, width), value)
    true = rows.double().norm(dim=1)
    assert ((precision.norms(rows).double() - true).abs() <= 16 * 2**-24 * true).all()
    assert (inflate(Dense(rows).measure()[0]).double() >= true).all()


def test_norms_in_blocks_are_norms() -> None:
    torch.manual_seed(0)
    for width in (1, 255, 256, 257, 1000, 70_000):
        rows = torch.randn(3, 2, width)
        assert torch.allclose(precision.norms(rows).double(), rows.double().norm(dim=-1), rtol=1e-6)


@pytest.mark.parametrize("name", thin(["single-backward", "loop", "vmap"], 3))
def test_a_map_of_constants_is_measured_as_it_is_added(name: str) -> None:
    """Sixteen million equal numbers: in one chain of float32 sums their norm is 1 % short."""
    model = torch.nn.Linear(4096, 4096, bias=False)
    batch = torch.full((1, 4096), 0.1), torch.zeros(1)
    found = per_sample(model, lambda out, _: out.sum(1) / 3, batch, engine=name)
    total = found.weighted_sum(torch.ones(1))["weight"]
    assert float(found.norms) >= float(total.double().norm())


@pytest.mark.parametrize("times", [1024, 4096])
def test_an_id_looked_up_often_is_measured_as_it_is_added(times: int) -> None:
    for uneven in (False, True):
        owners, ids = torch.zeros(times, dtype=torch.int64), torch.arange(times) % (times // 2)
        use = Lookups(ids, owners, torch.full((times, 16), 0.1), 1, times, even=not uneven)
        squares, (kept,) = combine([use])
        added = kept.weighted_sum(torch.ones(1)).double().norm()
        assert float(inflate(squares)) >= float(added)


def test_a_table_with_other_uses_is_measured_as_it_is_added() -> None:
    rows, owners = torch.full((4096, 16), 0.1), torch.zeros(4096, dtype=torch.int64)
    lookups = Lookups(torch.zeros(4096, dtype=torch.int64), owners, rows, 1, 40, even=True)
    small = Product(torch.full((1, 2, 16), 2.0**-40), torch.full((1, 2, 40), 2.0**-40))
    squares, uses = combine([small, lookups])
    added = sum(use.weighted_sum(torch.ones(1)).double() for use in uses).norm()  # type: ignore[union-attr]
    assert float(inflate(squares)) >= float(added)


def test_no_look_up_at_all_has_no_norm() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    for even in (False, True):
        squares, (kept,) = combine([Lookups(none, none, torch.zeros(0, 4), 3, 7, even=even)])
        assert squares.tolist() == [0.0, 0.0, 0.0]
        assert not kept.weighted_sum(torch.ones(3)).any()
