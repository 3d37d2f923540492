"""Gram norms whose matrices are never written: against float64 on a GPU, and who is measured with whom anywhere."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from dpilot.engine import per_sample
from dpilot.engine.layers import linear
from dpilot.engine.layers.linear import Product, SharedInput, finish_bounds, gram_sums, joint_parts, product
from dpilot.engine.single_backward import Measured
from dpilot.numerics import kernels, precision
from dpilot.numerics.devices import use_policy
from tests.contracts.zoo import DEVICE
from tests.devices import CUDA
from tests.engine.test_grades import tokens

ON_GPU = pytest.mark.skipif(DEVICE.type == "cpu", reason="kernels run on a GPU only")
KINDS = pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=["tf32", "bfloat16"])


@pytest.fixture(autouse=True)
def _however_few() -> Iterator[None]:
    """Few samples are enough for the kernel."""
    with use_policy(cuda=replace(CUDA, gram_programs=1)):
        yield


def fitted(rows: Tensor, kind: torch.dtype) -> Tensor:
    return precision.truncate_tf32(rows) if kind == torch.float32 else rows.to(kind)


def expected(a: Tensor, e: Tensor, rounds_inputs: bool, roots: kernels.Roots) -> tuple[Tensor, ...]:
    x, y = (torch.bmm(rows.double(), rows.double().mT) for rows in (a, e))
    own = [t.diagonal(dim1=1, dim2=2).sqrt() + root for t, root in zip((x, y), roots, strict=True)]
    return (
        (x * y).sum((1, 2)),
        (y if rounds_inputs else x).square().sum((1, 2)),
        (own[0] * own[1]).sum(1),
        own[0 if rounds_inputs else 1].square().sum(1),
        (roots[0] * own[1] + roots[1] * own[0]).sum(1),
    )


@ON_GPU
@KINDS
@pytest.mark.parametrize("rounds_inputs", [False, True])
@pytest.mark.parametrize("length", [1, 5, 64, 65, 128, 130, 197, 513])
def test_the_kernel_sums_products_of_gram_matrices_as_float64_does(
    length: int, rounds_inputs: bool, kind: torch.dtype
) -> None:
    """Between samples whose numbers are not finite: a token read beyond its sample's last would show."""
    torch.manual_seed(0)
    a = fitted(torch.randn(5, length, 208), kind)
    errors = [fitted(torch.randn(5, length, p) * 1e-2, kind) for p in (32, 144, 768)][: 1 + length % 3]
    for rows in (a, *errors):
        rows[1], rows[3] = math.nan, math.inf
    roots = [(1e-3, 2e-3 * (k + 1)) for k in range(len(errors))]
    found = kernels.gram_products(a, errors, rounds_inputs, roots)
    assert found is not None
    whole = [0, 2, 4]
    for e, sums, both in zip(errors, found, roots, strict=True):
        for ours, theirs in zip(sums, expected(a, e, rounds_inputs, both), strict=True):
            assert torch.allclose(ours[whole].double(), theirs[whole], rtol=3e-5)
        assert not torch.isfinite(sums[0][[1, 3]]).any()


@ON_GPU
@KINDS
@pytest.mark.parametrize("way", ["random", "positive", "cancelling"])
@pytest.mark.parametrize("shape", [(8, 33, 256, 128), (8, 197, 768, 3072), (4, 512, 768, 3072)], ids=str)
def test_gram_errors_of_the_kernel_stay_within_half_their_slack(
    way: str, shape: tuple[int, ...], kind: torch.dtype
) -> None:
    a, e = (fitted(t, kind) for t in tokens(way, *shape))
    grade = precision.TF32 if kind == torch.float32 else precision.BFLOAT16
    parts = joint_parts(a, [e], grade, rounds_inputs=False)
    assert parts is not None
    true = (torch.bmm(a.double(), a.double().mT) * torch.bmm(e.double(), e.double().mT)).sum((1, 2))
    lengths = (t.double().norm(dim=2) for t in (a, e))
    slack = parts[0].unit * math.prod(lengths).sum(1).square()
    assert ((parts[0].squares.double() - true).abs() <= slack / 2).all()


@ON_GPU
def test_the_kernel_leaves_alone_what_it_cannot_read() -> None:
    whole, roots = torch.randn(2, 32, 32), [(0.0, 0.0)]
    assert kernels.gram_products(whole, [whole], False, roots) is not None
    aside = torch.randn(2 * 32 * 32 + 1)[1:].view(2, 32, 32)
    for rows in (whole.mT, torch.randn(2, 32, 31), whole.double(), whole.bfloat16(), aside):
        assert kernels.gram_products(whole, [rows], False, roots) is None
        assert rows.dtype == torch.bfloat16 or kernels.gram_products(rows, [rows], False, roots) is None


@ON_GPU
def test_few_programs_are_left_to_plain_products() -> None:
    with use_policy(cuda=replace(CUDA, gram_programs=7)):
        for n, length, formed in [(6, 64, False), (7, 64, True), (2, 256, False), (3, 129, True)]:
            assert kernels.forms_products(torch.randn(n, length, 16)) == formed


def plainly(
    inputs: Tensor, errors: Sequence[Tensor], rounds_inputs: bool, roots: Sequence[kernels.Roots]
) -> list[kernels.FiveSums]:
    """What the kernel does, by plain operations."""
    both = [(precision.gram(inputs), precision.gram(e)) for e in errors]
    return [gram_sums(a, e, rounds_inputs, root) for (a, e), root in zip(both, roots, strict=True)]


@pytest.fixture
def meetings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many errors met an input at a time, where a kernel does it."""
    seen: list[int] = []

    def products(inputs: Tensor, errors: Sequence[Tensor], rounds_inputs: bool, roots: Sequence[kernels.Roots]):
        seen.append(len(errors))
        return plainly(inputs, errors, rounds_inputs, roots)

    monkeypatch.setattr(kernels, "forms_products", lambda _: True)
    monkeypatch.setattr(kernels, "gram_products", products)
    monkeypatch.setattr(precision, "grade_of", lambda *_, **__: (precision.TF32, torch.float32))
    monkeypatch.setattr(precision, "use_grade", lambda _: precision.NOTHING)
    return seen


@pytest.mark.parametrize(
    ("users", "arrive", "met"), [(3, 3, [3]), (1, 1, [1]), (3, 2, [2]), (4, 4, [3, 1]), (2, 2, [2])]
)
def test_maps_of_one_input_meet_when_the_last_has_come_or_at_the_end(
    users: int, arrive: int, met: list[int], meetings: list[int]
) -> None:
    torch.manual_seed(0)
    x, shared, found = torch.randn(4, 5, 40), SharedInput(users), Measured()
    uses = {str(k): product(x, torch.randn(4, 5, 32), 4, shared=shared) for k in range(arrive)}
    for name, use in uses.items():
        found.add(name, (use,))
    found.finish()
    assert meetings == met
    assert not found.waiting
    assert {name: kept for name, (kept,) in found.uses.items()} == uses
    for name, use in uses.items():
        alone = finish_bounds([Product(use.inputs, use.errors, grade=use.grade).gram_parts()])[0]
        assert torch.allclose(found.squares[name], alone, rtol=1e-6)


def test_maps_that_round_different_sides_are_measured_apart(meetings: list[int]) -> None:
    x, shared = torch.randn(4, 5, 40), SharedInput(2)
    uses = [product(x, torch.randn(4, 5, p), 4, shared=shared) for p in (32, 64)]
    parts = linear.mates_parts(uses)
    assert meetings == []
    for use, mine in zip(uses, parts, strict=True):
        alone = Product(use.inputs, use.errors, grade=use.grade).gram_parts()
        assert torch.allclose(mine.squares, alone.squares, rtol=1e-5)
        assert torch.allclose(finish_bounds([mine])[0], finish_bounds([alone])[0], rtol=1e-3)


class Attention(nn.Module):
    """Queries, keys and values of one input, and a map of their mixture."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(48, 48) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        mixed = torch.softmax(self.query(x) @ self.key(x).mT, -1) @ self.value(x)
        return self.out(mixed).sum((1, 2))


def test_an_attention_layer_has_the_norms_a_loop_finds(meetings: list[int]) -> None:
    torch.manual_seed(0)
    model, x = Attention(), torch.randn(3, 9, 48)
    loss = lambda out, _: out  # noqa: E731
    ours, oracle = (per_sample(model, loss, (x, x), way) for way in ("single-backward", "loop"))
    assert sorted(meetings[-2:]) == [1, 3]
    assert torch.allclose(ours.norms, oracle.norms, rtol=0.01)
    assert (ours.norms >= 0.999 * oracle.norms).all()
