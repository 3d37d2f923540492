"""Records whose tokens cancel: what they add is bounded, and what others add does not drown in their partial sums."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dpilot.engine import per_sample
from dpilot.engine.base import inflate
from dpilot.engine.layers.base import Apart, Dense, Formed
from dpilot.engine.layers.embedding import Lookups
from dpilot.engine.layers.linear import Product

U = 2.0**-24


def inner(out: Tensor, target: Tensor) -> Tensor:
    return (out * target).flatten(1).sum(1)


def change_without(model: nn.Module, loss: Any, batch: Any, i: int, name: str, bound: float, **options: Any) -> float:
    """By how much record i moves the sum of clipped gradients, in units of the bound."""

    def total(kept: Tensor) -> Tensor:
        rows = [tuple(t[kept] for t in part) if isinstance(part, tuple) else part[kept] for part in batch]
        found = per_sample(model, loss, tuple(rows), "single-backward", **options)
        return found.weighted_sum((bound / found.norms).clamp_max(1.0))[name].double()

    everyone = torch.ones(len(batch[1][0] if isinstance(batch[1], tuple) else batch[1]), dtype=torch.bool)
    others = everyone.clone()
    others[i] = False
    return float((total(everyone) - total(others)).norm()) / bound


@pytest.mark.parametrize("low_memory", [False, True])
@pytest.mark.parametrize(("n", "tokens", "i"), [(80, 5, 76), (100, 10, 38)])
def test_tokens_that_cancel_do_not_swallow_what_others_add(n: int, tokens: int, i: int, low_memory: bool) -> None:
    """Errors -A, 0, .., 0, +A beside records below half a unit of what A is weighed to."""
    large = 2.0 ** math.floor(math.log2(1 / (2 * tokens * U * 64)))
    x, targets = torch.ones(n, tokens, 64), torch.full((n, tokens, 64), 0.49 * large * U)
    targets[i] = 0.0
    targets[i, 0], targets[i, -1] = -large, large
    model = nn.Linear(64, 64, bias=False)
    bound = 2 * tokens * U * 64 * large
    assert change_without(model, inner, (x, targets), i, "weight", bound, low_memory=low_memory) <= 1.0


class Both(nn.Module):
    """A table that is looked up and multiplied with."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(3, 4)
        nn.init.zeros_(self.table.weight)

    def forward(self, ids: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.table(ids), nn.functional.linear(x, self.table.weight)


def of_both(out: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
    return inner(out[0], target[0]) + inner(out[1], target[1])


def test_a_product_and_a_look_up_that_cancel_do_not_swallow_what_others_add() -> None:
    n, tokens, i = 200, 128, 0
    large = 2.0 ** math.floor(math.log2(1 / (2 * 1024 * U * 2)))
    ids, x = torch.zeros(n, 1, dtype=torch.long), torch.ones(n, tokens, 4)
    up, down = torch.zeros(n, 1, 4), torch.zeros(n, tokens, 3)
    down[:, :, 0] = 0.98 * large * U
    down[i], down[i, 0, 0], up[i] = 0.0, large, -large
    assert change_without(Both(), of_both, ((ids, x), (up, down)), i, "table.weight", 2 * 1024 * U * 2 * large) <= 1.0


class Twice(nn.Module):
    """A convolution used for two images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.conv(x[:, 0]), self.conv(x[:, 1])], 1)


@pytest.mark.parametrize("low_memory", [False, True])
def test_a_convolution_used_twice_adds_no_more_than_its_norm(low_memory: bool) -> None:
    """Errors 1, v, v, .., -1, -(N - 3) v: what one way of adding loses, another keeps."""
    side = 96
    x, positions = torch.ones(1, 2, 4, side + 2, side + 2), side * side
    errors = torch.full((positions,), 0.95 * U)
    errors[0], errors[-2], errors[-1] = 1.0, -1.0, -0.95 * U * (positions - 3)
    targets = torch.zeros(1, 2, 4, side, side)
    targets[:, 0] = errors.view(side, side)
    found = per_sample(Twice(), inner, (x, targets), "single-backward", low_memory=low_memory)
    added = found.weighted_sum(torch.ones(1))["conv.weight"].double().norm()
    assert float(found.norms) >= float(added)


class Redrawn(nn.Module):
    """A checkpoint that draws anew whenever it is run again."""

    def __init__(self) -> None:
        super().__init__()
        self.map, self.drop = nn.Linear(50, 50, bias=False), nn.Dropout(0.9)

    def forward(self, x: Tensor) -> Tensor:
        made: Any = checkpoint(lambda rows: self.map(self.drop(rows)), x, use_reentrant=False, preserve_rng_state=False)
        return made


def test_a_checkpoint_that_draws_anew_is_summed_as_it_was_measured_in_low_memory() -> None:
    torch.manual_seed(0)
    x = torch.rand(16, 50)
    found = per_sample(Redrawn(), inner, (x, torch.ones(16, 50)), "single-backward", low_memory=True)
    for i, row in enumerate(torch.eye(16)):
        before = torch.get_rng_state()
        added = found.weighted_sum(row)["map.weight"].double().norm()
        assert float(added) <= float(found.norms[i])
        assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("width", [256, 4096])
def test_rows_that_lie_apart_are_measured_as_others(width: int) -> None:
    """(1, v, v, ..) with v^2 just below u, transposed in memory."""
    targets = torch.full((width, 3), math.sqrt(0.99 * U))
    targets[0] = 1.0
    found = per_sample(nn.Linear(2, width), inner, (torch.zeros(3, 2), targets.T), "single-backward")
    added = found.weighted_sum(torch.tensor([1.0, 0.0, 0.0]))["bias"].double().norm()
    assert float(found.norms[0]) >= float(added)


class OfTwoKinds(nn.Module):
    """A parameter in float32 beside one in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(4096)), nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (self.a * x).sum(1) + self.b


@pytest.mark.parametrize("name", ["vmap", "loop"])
def test_float32_beside_float64_keeps_room_for_its_rounding(name: str) -> None:
    x = torch.full((2, 4096), math.sqrt(0.99 * U))
    x[:, 0] = 1.0
    found = per_sample(OfTwoKinds(), lambda out, y: out - y, (x, torch.zeros(2)), name)
    sums = found.weighted_sum(torch.tensor([1.0, 0.0], dtype=torch.float64))
    added = math.hypot(*(float(total.double().norm()) for total in sums.values()))
    assert float(found.norms[0]) >= added


def test_what_is_summed_as_formed_is_the_gradient() -> None:
    torch.manual_seed(0)
    uses = (
        Product(torch.randn(5, 3, 4), torch.randn(5, 3, 6)),
        Dense(torch.randn(5, 6, 4)),
        Lookups(torch.randint(6, (10,)), torch.arange(5).repeat_interleave(2), torch.randn(10, 4), 5, 6, even=True),
    )
    true = sum(use.gradients(0, 5).double() for use in uses)
    weights = torch.rand(5)
    for step in (1, 2, 5):
        formed = Formed(uses, 5, step)
        assert torch.allclose(inflate(formed.measure()[0]).double(), true.flatten(1).norm(dim=1), rtol=1e-5)  # type: ignore[union-attr]
        total = torch.einsum("n,npd->pd", weights.double(), true)  # type: ignore[arg-type]
        assert torch.allclose(formed.weighted_sum(weights).double(), total, atol=1e-5)
    kept = formed.keep(torch.tensor([True, False, True, True, True]))
    assert not kept.gradients(1, 2).any()


def test_some_samples_apart_are_the_same_gradients() -> None:
    torch.manual_seed(0)
    use, chosen = Product(torch.randn(5, 3, 4), torch.randn(5, 3, 6)), torch.tensor([False, True, False, True, True])
    apart = Apart.of(use, chosen, Product(use.inputs[chosen], use.errors[chosen]))
    weights = torch.rand(5)
    assert torch.allclose(apart.weighted_sum(weights), use.weighted_sum(weights), atol=1e-5)
    assert torch.allclose(apart.gradients(1, 4), use.gradients(1, 4), atol=1e-6)
    assert torch.allclose(apart.magnitude(), use.magnitude())
    assert torch.allclose(apart.measure()[0], Dense(use.gradients(0, 5)).measure()[0], rtol=1e-4)
    nobody = apart.keep(torch.zeros(5, dtype=torch.bool))
    assert not nobody.weighted_sum(weights).any()


@pytest.mark.parametrize("low_memory", [False, True])
def test_a_gradient_of_zeros_is_not_formed(low_memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, which = nn.Linear(64, 64), torch.randn(6, 4, 64), torch.arange(6) % 2.0
    loss = lambda out, y: out.cos().sum((1, 2)) * y  # noqa: E731
    per_sample(model, loss, (x, which), "single-backward", low_memory=low_memory)
    monkeypatch.setattr(Formed, "measure", lambda _: pytest.fail("formed"))
    found = per_sample(model, loss, (x, which), "single-backward", low_memory=low_memory)
    assert ((found.norms < 1e-12) == (which == 0)).all()
    assert torch.isfinite(found.weighted_sum(torch.ones(6))["weight"]).all()


class Vector(nn.Module):
    """A table of single numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(9))

    def forward(self, ids: Tensor) -> Tensor:
        return self.table[ids].cos()


@pytest.mark.parametrize("low_memory", [False, True])
def test_a_table_of_numbers_is_looked_up(low_memory: bool) -> None:
    torch.manual_seed(0)
    model, batch = Vector(), (torch.randint(9, (4, 5)), torch.randn(4))
    loss = lambda out, y: out.sum(1) * y  # noqa: E731
    ours = per_sample(model, loss, batch, "single-backward", low_memory=low_memory)
    oracle = per_sample(model, loss, batch, "loop")
    assert torch.allclose(ours.norms, oracle.norms, rtol=1e-4)
    weights = torch.rand(4)
    assert torch.allclose(ours.weighted_sum(weights)["table"], oracle.weighted_sum(weights)["table"], atol=1e-5)


def test_float32_before_float64_sums_in_its_own_type() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(40, 48), nn.Linear(48, 40).double()

    class Widening(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = first, second

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.second(self.first(x).double())
            return made

    batch = torch.randn(5, 3, 40), torch.randn(5, 3, 40).double()
    for low_memory in (False, True):
        ours = per_sample(Widening(), inner, batch, "single-backward", low_memory=low_memory)
        oracle = per_sample(Widening(), inner, batch, "loop")
        weights = torch.rand(5, dtype=torch.float64)
        for name, total in oracle.weighted_sum(weights).items():
            mine = ours.weighted_sum(weights)[name]
            assert mine.dtype == total.dtype
            assert torch.allclose(mine, total, atol=1e-4)
