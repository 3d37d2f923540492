"""No scale of inputs and errors makes a norm smaller than what is added: not by underflow, overflow or flushing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from dpilot import engine
from dpilot.engine.base import inflate
from dpilot.engine.layers.linear import Product
from dpilot.numerics import precision
from dpilot.numerics.devices import use_policy
from tests.contracts.zoo import DEVICE
from tests.devices import like_a_gpu
from tests.thin import thin


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 4), nn.Linear(4, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids))


@pytest.mark.parametrize("tokens", [1, 4])
def test_squares_that_vanish_hide_no_gradient(tokens: int) -> None:
    model = nn.Linear(64, 64)
    x = torch.zeros(1, tokens, 64)
    x[..., 0], x[..., 1] = 1e18, -52.0
    small = torch.full((1, tokens, 64), 1e-23)
    gradients = engine.per_sample(model, lambda out, y: (out * y).flatten(1).sum(1), (x, small), "single-backward")
    added = gradients.weighted_sum(torch.ones(1))
    true = sum(float(g.double().square().sum()) for g in added.values()) ** 0.5
    assert true > 1e-6
    assert float(gradients.norms) >= true


def product_of(out: Tensor, y: Tensor) -> Tensor:
    return (out * y).flatten(1).sum(1)


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.MultiheadAttention(32, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.mix(x, x, x)[0]
        return out


class Tied(nn.Module):
    """One table that is looked up and multiplied with: uses of different kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(12, 12))

    def forward(self, x: Tensor) -> Tensor:
        ids = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
        return x @ self.table + nn.functional.embedding(ids, self.table)


class Runs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(24, 24, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.lstm(x)[0]
        return out


class Scales(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear, one token": (lambda: nn.Linear(20, 30), (20,)),
    "linear, Gram": (lambda: nn.Linear(64, 64), (8, 64)),
    "linear, Gram, errors wider": (lambda: nn.Linear(48, 96, bias=False), (5, 48)),
    "linear, formed": (lambda: nn.Linear(5, 7), (9, 5)),
    "convolution, Gram": (lambda: nn.Conv2d(16, 32, 3), (16, 4, 4)),
    "convolution, one position": (lambda: nn.Conv2d(4, 8, 3), (4, 3, 3)),
    "convolution, formed": (lambda: nn.Conv2d(8, 8, 3, padding=1), (8, 6, 6)),
    "layer norm": (lambda: nn.LayerNorm(10), (4, 10)),
    "group norm": (lambda: nn.GroupNorm(2, 6), (6, 3, 3)),
    "attention": (Attends, (3, 32)),
    "tied": (Tied, (4, 12)),
    "recurrent": (Runs, (3, 24)),
    "bare": (Scales, (4, 6)),
}


SCALES = ((False, -45, 20, 30), (True, -45, 8, 10), (False, -23, -19, 30), (True, -26, -18, 17))
"""Whether tokens have sizes of their own; exponents of the smallest and largest input and of the largest error."""


@pytest.fixture(params=["processor", "processor, flushing", "tensor cores", "tensor cores, flushing", "GPU"])
def machine(request: pytest.FixtureRequest) -> Iterator[str]:
    """Ways to compute norms, tried on the CPU: tensor cores' grades; a GPU's, where nobody looks at a bound."""
    name: str = request.param
    ways = {} if "processor" in name else like_a_gpu(tightens_bounds=False)
    if name == "GPU":
        ways = {kind: replace(policy, tf32=None) for kind, policy in ways.items()}
    torch.set_flush_denormal("flushing" in name or name == "GPU")
    with use_policy(**ways):
        yield name
    torch.set_flush_denormal(False)


def at_scales(shape: tuple[int, ...], least: int, most: int, mixed: bool) -> Tensor:
    """Numbers of one size a sample, or with sizes of their own for each of its first dimension."""
    samples = shape[:2] if mixed else shape[:1]
    sizes = 10.0 ** (least + (most - least) * torch.rand(samples, dtype=torch.float64))
    numbers = torch.randn(shape, dtype=torch.float64) if torch.rand(()) < 0.5 else torch.ones(shape).double()
    return (numbers * sizes.view(*samples, *[1] * (len(shape) - len(samples)))).float()


def bounds(norm: Tensor, length: float) -> bool:
    """Whether a norm is no smaller than what is added; a null sample adds nothing."""
    return float(norm) >= length if torch.isfinite(norm) else length == 0.0


@pytest.mark.skipif(DEVICE.type != "cpu", reason="the ways of a GPU are tried on the CPU here")
@pytest.mark.parametrize("kind", thin(LAYERS, 2))
def test_no_scale_of_inputs_and_errors_hides_a_gradient(kind: str, machine: str) -> None:
    torch.manual_seed(len(kind) + len(machine))
    make, shape = LAYERS[kind]
    model, n = make(), 24
    for mixed, least, most, largest in SCALES:
        x = at_scales((n, *shape), least, most, mixed and len(shape) > 1)
        out = model(x[:1]).shape[1:]
        y = at_scales((n, *out), -45, largest, mixed and len(out) > 1)
        gradients = engine.per_sample(model, product_of, (x, y), "single-backward")
        assert torch.isfinite(gradients.norms).any()
        for i in range(n):
            added = gradients.weighted_sum(torch.eye(n)[i])
            parts = [float(g.double().norm()) for g in added.values()]
            each = gradients.group_norms([[name] for name in added])[i]
            assert bounds(gradients.norms[i], math.hypot(*parts)), (i, mixed, least)
            assert all(map(bounds, each, parts)), (i, mixed, least)


@pytest.mark.skipif(DEVICE.type != "cpu", reason="the ways of a GPU are tried on the CPU here")
@pytest.mark.parametrize("way", ["single-backward", "vmap", "loop"])
@pytest.mark.parametrize("low_memory", [False, True])
def test_no_scale_hides_what_is_looked_up_or_formed(way: str, low_memory: bool) -> None:
    if low_memory and way != "single-backward":
        pytest.skip("refused")
    torch.manual_seed(0)
    model, n = Tokens(), 30
    ids = torch.randint(10, (n, 6))
    y = torch.cat([at_scales((n // 2, 6, 5), *sizes, False) for sizes in ((-45, 30), (-24, -18))])
    gradients = engine.per_sample(model, product_of, (ids, y), way, low_memory=low_memory)
    for i in range(n):
        added = gradients.weighted_sum(torch.eye(n)[i])
        assert bounds(gradients.norms[i], math.hypot(*(float(g.double().norm()) for g in added.values()))), i


@pytest.mark.parametrize("grade", [precision.FULL, precision.TF32, precision.BFLOAT16], ids=lambda g: g.name)
@pytest.mark.parametrize("size", [1e-30, 2e-23, 1e-20, 1e-10])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_gram_matrix_that_vanishes_beside_a_large_one_hides_nothing(grade, size: float, swapped: bool) -> None:
    torch.manual_seed(0)
    small, large = torch.full((3, 8, 64), size), torch.randn(3, 1, 96).expand(3, 8, 96) * 1e12
    pair = [t.bfloat16().float().contiguous() for t in (small, large)]
    use = Product(*(reversed(pair) if swapped else pair), grade=grade)
    true = torch.bmm(use.errors.double().mT, use.inputs.double()).flatten(1).norm(dim=1)
    ours = inflate(use.measure()[0]).double()
    assert (ours >= true * (1 + grade.shave)).all()
    if size >= 1e-10:
        assert (ours <= 1.01 * true).all()
