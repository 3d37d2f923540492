"""A table that is looked up and multiplied with: its norm without its gradient, rounding included."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpilot.engine import per_sample
from dpilot.engine.base import inflate
from dpilot.engine.layers import embedding
from dpilot.engine.layers.base import Dense, Use
from dpilot.engine.layers.embedding import Lookups, tied_parts
from dpilot.engine.layers.linear import Product, finish_bounds, gram
from dpilot.engine.single_backward import Measured
from dpilot.numerics import precision
from dpilot.numerics.devices import use_policy
from tests.contracts.zoo import DEVICE
from tests.devices import tensor_cores

N = 5
ON_CPU = DEVICE.type == "cpu"


@pytest.fixture(autouse=True)
def _tensor_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Products in TF32; on the CPU, of numbers cut as tensor cores cut them."""
    if not ON_CPU:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        yield
        torch.set_float32_matmul_precision(before)
        return
    monkeypatch.setattr(precision, "mm", lambda x, y: torch.mm(precision.truncate_tf32(x), precision.truncate_tf32(y)))
    monkeypatch.setattr(
        precision, "bmm", lambda x, y: torch.bmm(precision.truncate_tf32(x), precision.truncate_tf32(y))
    )
    with use_policy(**tensor_cores()):
        yield


def both(
    way: str, tokens: int, looked_up: int, d: int, p: int, kind: torch.dtype = torch.float32, size: float = 1.0
) -> tuple[Product, Lookups]:
    """Tokens of a product and look-ups, some of the same id; cancelling ones add up to a small part of their size."""
    torch.manual_seed(0)
    a, e, rows = (torch.randn(N, t, w) for t, w in ((tokens, d), (tokens, p), (looked_up, d)))
    if way == "positive":
        a, e, rows = a.abs(), e.abs(), rows.abs()
    if way == "cancelling":
        a = (a[:, :1].abs() + 0.5).expand_as(a) + 1e-2 * a
        e = e - e.mean(1, keepdim=True)
    ids = torch.randint(min(p, 2 * looked_up + 1), (N, looked_up))
    if way == "opposed":  # what is looked up takes away most of what the product adds to those rows
        rows = -torch.einsum("nts,ntd->nsd", e.gather(2, ids[:, None].expand(-1, tokens, -1)), a)
    fit = precision.truncate_tf32 if kind == torch.float32 else (lambda t: t.to(kind))
    grade = precision.TF32 if kind == torch.float32 else precision.BFLOAT16
    owners = torch.arange(N).repeat_interleave(looked_up)
    rows = (rows * size).flatten(0, 1)
    return Product(fit(a), fit(e), grade=grade), Lookups(ids.flatten(), owners, rows, N, p, even=True)


def gradients(multiplied: Product, looked_up: Lookups) -> Tensor:
    """The whole gradients in float64."""
    whole = torch.bmm(multiplied.errors.double().mT, multiplied.inputs.double())
    place = looked_up.owners * looked_up.vocabulary + looked_up.tokens
    whole.view(-1, whole.shape[2]).index_add_(0, place, looked_up.rows.double())
    return whole


def added(uses: tuple[Product, Lookups], weights: Tensor) -> Tensor:
    """Lengths, in float64, of what is summed with each row of weights."""
    found = tied_parts(uses)
    assert found is not None
    rows = [sum(use.weighted_sum(w).double() for use in found[1]).norm() for w in weights]  # type: ignore[union-attr]
    return torch.stack(rows)


def bounds(*uses: Use) -> Tensor:
    found = tied_parts(uses)
    assert found is not None
    return inflate(finish_bounds([found[0]])[0]).double()


LARGE = [] if ON_CPU else [(512, 512, 768, 50257)]
SIZES = [(4, 4, 96, 64), (6, 3, 64, 130), (8, 9, 48, 5001), (24, 24, 128, 301), *LARGE]
WAYS = ["random", "positive", "cancelling", "opposed"]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_the_norm_bounds_the_gradient_and_what_is_summed(way: str, sizes: tuple[int, ...]) -> None:
    uses = both(way, *sizes)
    ours, true = bounds(*uses), gradients(*uses).flatten(1).norm(dim=1)
    assert (ours >= true).all()
    for weight in (1.0, 0.7371, 3e-5):
        one = weight * torch.eye(N)
        assert (ours >= added(uses, one) / weight).all()
    if way in ("random", "positive"):
        assert (ours <= (1.02 if sizes[0] < 100 else 1.05) * true).all()


@pytest.mark.parametrize("size", [1e-3, 1e3, 1e-25, 1e-35])
def test_rows_of_any_size_are_counted(size: float) -> None:
    uses = both("random", 6, 8, 96, 301, size=size)
    true = gradients(*uses).flatten(1).norm(dim=1)
    assert (bounds(*uses) >= true).all()
    assert (bounds(*uses) <= 1.02 * true).all()


def test_tokens_too_small_to_square_are_counted() -> None:
    multiplied, looked_up = both("random", 6, 8, 96, 301)
    small = Product(multiplied.inputs * 2.0**-70, multiplied.errors * 2.0**-70, grade=precision.TF32)
    rows = Lookups(looked_up.tokens, looked_up.owners, looked_up.rows * 2.0**-75, N, 301, even=True)
    assert (bounds(small, rows) >= gradients(small, rows).flatten(1).norm(dim=1)).all()


@pytest.mark.parametrize("gone", ["across", "squares_of"])
def test_each_term_is_needed(gone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one of the terms, some gradient is longer than its norm."""

    def violated() -> bool:
        ways = [both(way, 6, 3, 64, 130) for way in WAYS]
        repeated = both("positive", 6, 8, 64, 130)
        ways.append((repeated[0], Lookups(repeated[1].tokens * 0, *[getattr(repeated[1], f) for f in REST], even=True)))
        return any((bounds(*uses) < gradients(*uses).flatten(1).norm(dim=1)).any() for uses in ways)

    assert not violated()
    monkeypatch.setattr(embedding, gone, lambda *_: 0.0)
    assert violated()


REST = ("owners", "rows", "batch_size", "vocabulary")


def test_an_inner_product_that_overflows_is_no_small_norm() -> None:
    """P and L take each other away: 2 <P, L> falls below all floats before their own squares rise above them."""
    ids, owners = torch.full((N * 2,), 7), torch.arange(N).repeat_interleave(2)
    for size in torch.logspace(18.9, 19.4, 60).tolist():
        for part in (0.7, 0.9, 0.999, 1.0):
            a, e = torch.ones(N, 2, 64) / 8, torch.zeros(N, 2, 130)
            e[:, :, 7] = size / 2
            rows = torch.full((N * 2, 64), -size * part / 16)
            uses = (
                Product(a, precision.truncate_tf32(e), grade=precision.TF32),
                Lookups(ids, owners, rows, N, 130, even=True),
            )
            ours, true = bounds(*uses), gradients(*uses).flatten(1).norm(dim=1)
            assert (~torch.isfinite(ours) | (ours >= true)).all()


@pytest.mark.parametrize("times", [512, 2048])
def test_an_id_looked_up_often_is_added_as_it_is_measured(times: int) -> None:
    """Equal rows added one after another round to one side."""
    for value in (0.3, 1 / 3, 0.1):
        rows = torch.full((N * times, 32), value)
        ids = torch.zeros(N * times, dtype=torch.int64)
        owners = torch.arange(N).repeat_interleave(times)
        a, e = torch.full((N, 2, 32), 2.0**-40), torch.full((N, 2, 200), 2.0**-40)
        uses = Product(a, e, grade=precision.TF32), Lookups(ids, owners, rows, N, 200, even=True)
        assert (bounds(*uses) >= added(uses, torch.eye(N))).all()


@pytest.mark.parametrize("odd", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize("where", ["product", "look-up"])
def test_a_bad_sample_is_its_own_affair(odd: float, where: str) -> None:
    multiplied, looked_up = both("random", 6, 8, 96, 301)
    before = bounds(multiplied, looked_up)
    if where == "product":
        multiplied.errors[2, 1, 7] = odd
    else:
        looked_up.rows[2 * 8 + 3, 5] = odd
    after = bounds(multiplied, looked_up)
    others = torch.arange(N) != 2
    assert torch.equal(after[others], before[others])
    assert not (torch.isfinite(after[2]) and after[2] < 1e29)


def test_a_table_that_nobody_looked_up_is_a_product() -> None:
    multiplied, looked_up = both("random", 6, 0, 96, 301)
    true = gradients(multiplied, looked_up).flatten(1).norm(dim=1)
    assert (bounds(multiplied, looked_up) >= true).all()
    assert (bounds(multiplied, looked_up) <= 1.02 * true).all()


def test_bfloat16_records_are_bounded() -> None:
    if ON_CPU:
        pytest.skip("bfloat16 products with float32 results are the GPU's")
    uses = both("random", 24, 24, 128, 301, torch.bfloat16)
    true = gradients(*uses).flatten(1).norm(dim=1)
    assert (bounds(*uses) >= true).all()
    assert (bounds(*uses) <= 1.02 * true).all()


def test_other_uses_are_left_alone() -> None:
    multiplied, looked_up = both("random", 6, 8, 96, 301)
    full = Product(multiplied.inputs, multiplied.errors)
    turned = Product(multiplied.inputs, multiplied.errors, swapped=True, grade=precision.TF32)
    apart = Lookups(looked_up.tokens, looked_up.owners, looked_up.rows, N, 301)
    long = both("random", 90, 8, 96, 301)
    values = Dense(torch.zeros(N, 301, 96))
    for uses in (
        [multiplied],
        [looked_up],
        [full, looked_up],
        [turned, looked_up],
        [multiplied, apart],
        [multiplied, looked_up, looked_up],
        [multiplied, multiplied],
        [values, looked_up],
        [*long],
    ):
        assert tied_parts(uses) is None


class Tied(nn.Module):
    """A language model whose output layer is its embedding."""

    def __init__(self, vocabulary: int, width: int = 64) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.middle = nn.Linear(width, width)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.tanh(self.middle(self.table(ids))) @ self.table.weight.T


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    each = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return each.view(targets.shape).mean(1)


@pytest.mark.parametrize("vocabulary", [200, 4101])
@pytest.mark.parametrize("kind", [torch.int64, torch.int32])
def test_a_language_model_is_measured_without_its_gradients(
    vocabulary: int, kind: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = Tied(vocabulary).to(DEVICE)
    ids, targets = torch.randint(50, (2, N, 7)).unbind(0)
    batch: Any = ids.to(kind), targets
    per_sample(model, loss, batch, engine="single-backward")  # tested on made-up samples, in full precision
    formed: list[Any] = []
    monkeypatch.setattr(Product, "gradients", lambda *_: formed.append(_) or 1 / 0)
    found = per_sample(model, loss, batch, engine="single-backward")
    expected = per_sample(model, loss, batch, engine="loop")
    assert not formed
    assert (found.norms >= expected.norms * (1 - 2e-3)).all()  # of records that were cut
    assert (found.norms <= expected.norms * 1.02).all()
    weights = torch.rand(N)
    ours, theirs = found.weighted_sum(weights), expected.weighted_sum(weights)
    for name, total in theirs.items():
        assert (ours[name] - total).norm() <= 5e-3 * total.norm()


def test_wide_rows_are_added_up_in_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    e = precision.truncate_tf32(torch.rand(2, 16, 3 * 512 + 7))
    lengths = []
    plain = precision.bmm
    monkeypatch.setattr(precision, "stretch_of", lambda _: 512)
    monkeypatch.setattr(precision, "bmm", lambda x, y: lengths.append(x.shape[2]) or plain(x, y))
    with precision.use_grade(precision.TF32):
        found = precision.gram(e).double()
    true = torch.bmm(e.double(), e.double().mT)
    assert lengths == [512, 512, 512, 7]
    scale = e.double().norm(dim=2)
    allowed = precision.chain(e.shape[2], 2.0) * 2**-24 * scale[:, :, None] * scale[:, None, :]
    assert ((found - true).abs() <= allowed).all()


@pytest.mark.parametrize("tokens", [8, 5])
def test_wide_records_begin_where_sixteen_bytes_do_and_hold_the_same(tokens: int) -> None:
    torch.manual_seed(0)
    values = torch.randn(3, tokens, precision.WIDE + 5)
    kept = precision.truncate_tf32(values)
    assert kept.stride(1) % 4 == 0
    assert kept.stride(1) - kept.shape[2] < 4
    assert torch.equal(kept, precision.truncate_tf32(values.flatten(0, 1)).view_as(values))
    a = precision.truncate_tf32(torch.randn(3, tokens, 24))
    wide, plain = (Product(a, e, grade=precision.TF32) for e in (kept, kept.contiguous()))
    weights = torch.rand(3)
    assert torch.allclose(wide.weighted_sum(weights), plain.weighted_sum(weights), rtol=1e-2, atol=1e-2)
    with precision.use_grade(precision.TF32):
        assert torch.allclose(gram(wide.inputs, wide.errors), gram(plain.inputs, plain.errors), rtol=1e-4)


def test_tied_uses_are_finished_together_with_others() -> None:
    uses = both("random", 6, 8, 96, 301)
    measured = Measured()
    measured.add("table", uses)
    measured.add("alone", [uses[0]])
    measured.finish()
    assert torch.allclose(inflate(measured.squares["table"]).double(), bounds(*uses))
    weights = torch.rand(N)
    table = sum(use.weighted_sum(weights) for use in measured.uses["table"])
    expected = torch.einsum("n,npd->pd", weights.double(), gradients(*uses))
    assert torch.allclose(table.double(), expected, atol=2e-2)  # type: ignore[union-attr]
