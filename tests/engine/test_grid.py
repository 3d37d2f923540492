"""Sums on a grid: what each record adds is rounded by itself, and no other record moves a bit of it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpilot import engine
from dpilot.engine import single_backward
from dpilot.engine.batch import Chunk, rebuild
from dpilot.engine.generators import GeneratorStates
from dpilot.engine.isolate import copies
from dpilot.engine.layers.base import Apart
from dpilot.errors import InvalidInput
from dpilot.numerics.devices import leave_bounds
from dpilot.numerics.grid import LOST, Grid, sum_products, sum_rows
from tests.contracts import zoo

BOUND = 1.0
GRID = Grid(2.0**-20, BOUND, products=40, records=1 << 10)
HOSTILE = [math.nan, math.inf, -3e38, 1e-42, 0.0, 1e15]


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


QUICK = ("mlp", "linear_gram", "conv2d", "conv_gram")


def vectors(model: nn.Module, loss: Any, batch: Any, **how: Any) -> list[dict[str, Tensor]]:
    """What each record adds, clipped to the bound and rounded."""
    torch.manual_seed(5)
    with leave_bounds():
        found = engine.per_sample(model, loss, batch, **how)
    weights = torch.where(torch.isfinite(found.norms), BOUND / found.norms.clamp_min(1e-12), 0.0).clamp_max(1e6)
    each = torch.diag(weights)
    whole = found.weighted_sum(weights, grid=GRID)
    made = [found.weighted_sum(row, grid=GRID) for row in each]
    for name, total in whole.items():
        assert torch.equal(sum(one[name] for one in made), total), "sums on a grid have an order"
    return made


def replace_record(batch: Any, n: int, j: int, value: float) -> Any:
    """The batch with every number of record j another one; ids become the first that is another."""

    def other(t: Tensor) -> Tensor:
        if not (t.dim() and t.shape[0] == n):
            return t
        made = t.clone()
        made[j] = value if t.is_floating_point() else torch.where(t[j] == 1, 2, 1).to(t.dtype)
        return made

    return rebuild(batch, other)


def differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    return [name for name in one if not torch.equal(one[name], other[name])]


@pytest.mark.parametrize("name", [each if each in QUICK else slow(each) for each in zoo.ZOO])
def test_no_number_of_a_record_moves_what_another_adds(name: str) -> None:
    case = zoo.build(name, torch.float32)
    before = vectors(case.model, case.loss, case.batch, per_batch=case.per_batch)
    for value in HOSTILE if name in QUICK else HOSTILE[:1]:
        changed = replace_record(case.batch, zoo.N, 1, value)
        after = vectors(case.model, case.loss, changed, per_batch=case.per_batch)
        assert [differing(before[i], after[i]) for i in (0, 2, 3)] == [[]] * 3, value


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(17, 33), nn.ReLU(), nn.Linear(33, 5))


def network() -> nn.Module:
    layers = nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 9, 3, 2), nn.ReLU(), nn.Flatten()
    return nn.Sequential(nn.Unflatten(1, (1, 1, 17)), nn.Upsample((9, 17)), *layers, nn.Linear(9 * 4 * 8, 5))


@pytest.mark.parametrize(
    ("make", "engine_name"),
    [
        (perceptron, "single-backward"),
        (network, "vmap"),
        slow(perceptron, "vmap"),
        slow(network, "single-backward"),
        slow(perceptron, "loop"),
        slow(network, "loop"),
    ],
)
def test_chunks_of_any_size_keep_records_apart(make: Any, engine_name: str) -> None:
    torch.manual_seed(0)
    model, sizes = make(), (3, 19) if engine_name == "loop" else (3, 19, 65)
    for n in sizes:
        batch = torch.randn(n, 17), torch.arange(n) % 5
        before = vectors(model, zoo.cross_entropy, batch, engine=engine_name)
        for value in HOSTILE[:4]:
            after = vectors(model, zoo.cross_entropy, replace_record(batch, n, n // 2, value), engine=engine_name)
            assert [differing(before[i], after[i]) for i in range(n) if i != n // 2] == [[]] * (n - 1)


@pytest.mark.parametrize("name", ["mlp", "linear_gram", "conv2d", "conv_gram", "embedding", "tied_embeddings", "lstm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_a_record_adds_is_its_gradient_and_no_longer_than_the_proof_allows(name: str, dtype: torch.dtype) -> None:
    case = zoo.build(name, dtype)
    made = vectors(case.model, case.loss, case.batch, per_batch=case.per_batch)
    loop = engine.per_sample(case.model, case.loss, case.batch, "loop", per_batch=case.per_batch)
    d = sum(parameter.numel() for parameter in case.model.parameters())
    for i, found in enumerate(made):
        exact = loop.weighted_sum(torch.eye(zoo.N, dtype=loop.norms.dtype)[i] / loop.norms)
        off = math.sqrt(sum(float((found[k] - exact[k].double()).square().sum()) for k in exact))
        length = math.sqrt(sum(float(each.square().sum()) for each in found.values()))
        assert off <= LOST * BOUND + GRID.size * math.sqrt(d) / 2 + 1e-4
        assert length <= BOUND * (1 + LOST) + GRID.size * math.sqrt(d) / 2


@pytest.mark.parametrize(("d", "p"), [(1, 1), (3, 200), (784, 64), (5, 5)])
def test_rounded_factors_lose_no_more_than_is_paid_for(d: int, p: int) -> None:
    """Of factors of any size, all of whose products are as long as the bound."""
    torch.manual_seed(d)
    a, e = torch.randn(40, d), torch.randn(40, p)
    a[:10] *= 1e-30
    e[5:15] *= 1e25
    a[15:20, 1:] = 0
    a[20:25], e[25:30] = 1.0, 1.0  # every entry may be off by half a grid the same way
    weights = (BOUND / (a.double().norm(dim=1) * e.double().norm(dim=1))).clamp_max(3e38)
    for products in (1, 12):
        grid = Grid(2.0**-20, BOUND, products)
        grids = grid.factors(d, p)
        assert grids is not None
        for i in range(40):
            mine = torch.where(torch.arange(40) == i, weights, 0.0)
            off = sum_products(a, e, mine, grids) - weights[i] * torch.outer(e[i].double(), a[i].double())
            assert float(off.norm()) <= LOST * BOUND / math.sqrt(products)


def test_sums_of_products_are_exact_where_a_grid_has_room_for_them() -> None:
    """Against whole numbers of Python, for as many records as a grid promises."""
    grid, n = Grid(2.0**-20, BOUND, 3, records=1 << 10), 1 << 10
    grids = grid.factors(4, 6)
    assert grids is not None
    a, e = torch.ones(n, 4), torch.ones(n, 6)
    a += torch.rand(n, 4) * 1e-3
    weights = BOUND / (a.double().norm(dim=1) * e.double().norm(dim=1))
    total = sum_products(a, e, weights, grids)
    unit = grids[0] * grids[1]
    whole = [[0] * 4 for _ in range(6)]
    for start in range(n):
        one = sum_products(a[start : start + 1], e[start : start + 1], weights[start : start + 1], grids) / unit
        for p, row in enumerate(one.tolist()):
            for d, value in enumerate(row):
                assert value == int(value)
                whole[p][d] += int(value)
    assert max(map(max, whole)) < 2**53
    assert (total / unit).tolist() == whole


def test_sums_of_formed_vectors_are_exact() -> None:
    """Against whole numbers of Python, which float32 could not add: 300 of up to 2^20."""
    torch.manual_seed(0)
    values = torch.rand(300, 7)
    total = sum_rows(values, torch.ones(300), GRID) / GRID.size
    assert total.tolist() == [sum(round(v * 2**20) for v in column) for column in values.T.tolist()]


def test_a_grid_without_room_forms_products() -> None:
    assert Grid(2.0**-20, BOUND, 1000, records=1 << 30).factors(4096, 4096) is None
    assert Grid(2.0**-20, BOUND, 12, records=1 << 12).factors(2050, 2050) is not None


def test_weights_that_no_float_can_hold_on_the_grid_are_zero() -> None:
    values = torch.full((2, 3), 1e-36)
    assert sum_rows(values, torch.tensor([3e38, 1.0]), GRID).tolist() == [0.0] * 3


def test_sums_on_a_grid_take_one_backward_pass() -> None:
    model, batch = perceptron(), (torch.randn(3, 17), torch.arange(3))
    found = engine.per_sample(model, zoo.cross_entropy, batch, low_memory=True)
    with pytest.raises(InvalidInput, match="grid"):
        found.weighted_sum(torch.ones(3), grid=GRID)


def test_a_sample_among_copies_of_itself_is_summed_as_among_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens that cancel leave loose bounds: looked for in the pass of the sums alone, they are formed otherwise."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 160), nn.Linear(160, 3))
    x = torch.randn(5, 2, 32) * 1e3
    x = torch.cat([x, 1e-4 * torch.randn(5, 2, 32) - x], dim=1)
    batch = Chunk(model, cross_entropy_of_mean, (x, torch.arange(5) % 3), 5)
    monkeypatch.setattr(Apart, "of", None)  # whoever tightens a bound fails
    with leave_bounds():
        draws = GeneratorStates.now()
        together = single_backward.run(batch, reason="")
        alone = copies.run(batch, reason="", draws=draws, of_chunk=single_backward.run)
    assert torch.equal(together.norms, alone.norms)
    weights = BOUND / together.norms
    assert not differing(together.weighted_sum(weights, grid=GRID), alone.weighted_sum(weights, grid=GRID))


def cross_entropy_of_mean(out: Tensor, y: Tensor) -> Tensor:
    return zoo.cross_entropy(out.mean(1), y)
