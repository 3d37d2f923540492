"""Random numbers of a sample's own: in the loop, under vmap, and where a chunk is computed again or raises."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpilot import engine
from dpilot.engine.base import NoRule, PerSample
from dpilot.engine.batch import Chunk
from dpilot.engine.generators import GeneratorStates, seeds, sow
from dpilot.engine.isolate import loop, vmap
from dpilot.engine.trace import judge
from tests.functions import Identity

N, WIDE = 5, 3
LARGE = 100.0


class Model(nn.Module):
    """``head(body(x))``; the gradient of a sample's loss is what the body makes of it."""

    def __init__(self, body: Callable[[Tensor], Tensor], **held: Any) -> None:
        super().__init__()
        self.head, self.body, self.held = nn.Linear(WIDE, 1, bias=False), body, held

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))[:, 0]


def plain(out: Tensor, y: Tensor) -> Tensor:
    return out - y


def ones() -> tuple[Tensor, Tensor]:
    """Equal samples: their gradients differ by what they draw alone."""
    return torch.ones(N, WIDE), torch.zeros(N)


def distinct(found: PerSample) -> int:
    return len(set(found.norms.tolist()))


FOR_ALL: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "one number": (lambda x: x * torch.rand(()), "vmap"),
    "one row": (lambda x: x * torch.rand(WIDE), "vmap"),
    "a row for each, from one draw": (lambda x: x * torch.rand(1, WIDE).expand(len(x), -1).clone(), "vmap"),
    "dropped connections": (lambda x: F.linear(x, F.dropout(torch.rand(WIDE, WIDE), 0.5)), "vmap"),
    "a number that Python reads": (lambda x: x * torch.rand(()).item(), "loop"),
    "Python": (lambda x: x * random.random(), "loop"),
    "numpy": (lambda x: x * float(np.random.rand()), "loop"),
}


@pytest.mark.parametrize("name", FOR_ALL)
def test_what_is_drawn_for_a_whole_chunk_is_drawn_for_each_sample(name: str) -> None:
    body, way = FOR_ALL[name]
    found = engine.per_sample(Model(body), plain, ones())
    assert found.engine == way
    assert distinct(found) == N


def test_a_pass_says_what_is_drawn_for_all_records() -> None:
    found = engine.per_sample(Model(FOR_ALL["one row"][0]), plain, ones())
    assert "mul: random numbers are drawn for all records together (test_draws.py:" in found.reason


HELD: dict[str, Callable[[], Any]] = {
    "torch": lambda: (lambda g: lambda: torch.rand((), generator=g))(torch.Generator().manual_seed(0)),
    "Python": lambda: random.Random(0).random,
    "numpy": lambda: (lambda g: lambda: g.random())(np.random.default_rng(0)),
    "numpy, as it was": lambda: (lambda g: lambda: g.rand())(np.random.RandomState(0)),
}


@pytest.mark.parametrize("name", HELD)
def test_a_generator_that_is_held_draws_for_each_sample(name: str) -> None:
    draw = HELD[name]()
    held = draw.__self__ if name == "Python" else draw
    model = Model(lambda x: x * float(draw()), held=held)
    torch.manual_seed(0)
    found = engine.per_sample(model, plain, ones())
    torch.manual_seed(0)
    again = engine.per_sample(model, plain, ones())
    assert found.engine == "loop"
    assert distinct(found) == N
    assert torch.equal(found.norms, again.norms)  # from the seeds, not from where the generator stood


@pytest.mark.parametrize("name", HELD)
def test_a_sample_that_draws_more_from_a_held_generator_moves_no_other(name: str) -> None:
    draw = HELD[name]()
    held = draw.__self__ if name == "Python" else draw

    def body(x: Tensor) -> Tensor:
        return x * float(draw() + draw() if bool(x.max() > LARGE / 2) else draw())

    model, (x, y) = Model(body, held=held), ones()
    torch.manual_seed(0)
    before = engine.per_sample(model, plain, (x, y))
    x[0] = LARGE
    torch.manual_seed(0)
    assert torch.equal(engine.per_sample(model, plain, (x, y)).norms[1:], before.norms[1:])


def disturb(x: Tensor) -> Tensor:
    """A large sample sets and uses every generator."""
    if bool(x.max() > LARGE / 2):
        for seed in (torch.manual_seed, random.seed, np.random.seed):
            seed(3)
        torch.rand(7), random.random(), np.random.rand()
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
    return (x * (torch.rand(()) + random.random() + np.random.rand()) * torch.ones(WIDE)).to(x.dtype)


@pytest.mark.parametrize("place", [0, 2, N - 1])
def test_a_sample_that_sets_generators_and_switches_moves_no_other(place: int) -> None:
    model, (x, y) = Model(disturb), ones()
    torch.manual_seed(0)
    before = loop.run(Chunk(model, plain, (x, y), N), reason="")
    after_before = GeneratorStates.now()
    changed = x.clone()
    changed[place] = LARGE
    torch.manual_seed(0)
    after = loop.run(Chunk(model, plain, (changed, y), N), reason="")
    others = torch.arange(N) != place
    assert torch.equal(before.norms[others], after.norms[others])
    assert not after_before.moved()
    assert torch.get_default_dtype() is torch.float32


def test_a_sample_that_seeds_decides_nothing_for_those_behind_it() -> None:
    """Or one record would move those behind it: by 3.9 bounds in a run of 12 records."""

    class Noisy(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            hidden = x + torch.randn(2)
            if float(x.max()) > 50:
                torch.manual_seed(0)
            return super().forward(hidden)

    def norms(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return engine.per_sample(model, lambda out, y: out[:, 0] - y, (x, torch.zeros(3))).norms

    model, x = Noisy(2, 1), torch.tensor([[0.0, 0.0], [99.0, 0.0], [0.0, 0.0]])
    first, second = norms(1), norms(2)
    assert first[0] != second[0]
    assert first[2] != second[2]


@torch.library.custom_op("dpilot_tests::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    return 2 * x


doubled.register_vmap(lambda info, in_dims, x: (2 * x, in_dims[0]))
doubled.register_autograd(lambda ctx, grad: 2 * grad)


class OwnRule(Identity):
    """The identity, with a rule for vmap of its own."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
        return x.clone(), in_dims[0]


def caught(x: Tensor) -> Tensor:
    try:
        return x * F.embedding(x.detach().long() + 1, torch.ones(1, 1))[..., 0]
    except IndexError:
        return x


def set_again(x: Tensor) -> Tensor:
    torch.manual_seed(0)
    return x + torch.rand(WIDE)


def set_at_the_end(x: Tensor) -> Tensor:
    x = x + torch.rand(WIDE)
    torch.manual_seed(0)
    return x


def test_a_generator_that_is_set_for_the_next_pass_is_seen() -> None:
    """Each sample has its own numbers, but the next pass has the same."""

    def body(x: Tensor) -> Tensor:
        x = x + torch.rand_like(x)
        torch.manual_seed(0)
        return x

    verdict = judge(Chunk(Model(body), plain, ones(), N))
    assert verdict.kind == "unknown"
    assert "torch's generator was set" in verdict.why


LEAKS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "a text": (lambda x: x * len(str(x)), "__repr__ takes values"),
    "a text in a text": (lambda x: x * len(f"{x}"), "__format__ takes values"),
    "an operation that fails": (caught, "embedding raises"),
    "a check of all": (lambda x: x * torch._is_all_true(x > 0), "_is_all_true looks at the whole chunk"),
    "arguments of a distribution": (
        lambda x: x + torch.distributions.Normal(x.detach(), 1.0, validate_args=True).mean,
        "looks at the whole chunk",
    ),
    "a rule of its own": (OwnRule.apply, "OwnRule runs a rule of its own"),
    "an operation of its own": (doubled, "may run a rule of its own"),
    "a generator of its own": (
        lambda x: x + torch.rand(WIDE, generator=torch.Generator().manual_seed(0)),
        "draws from a generator that the model set",
    ),
    "a generator that is set": (set_again, "draws from a generator that the model set"),
    "a generator that is set at the end": (set_at_the_end, "does not draw for each sample"),
    "Python": (lambda x: x * random.random(), "does not draw for each sample"),
    "numpy": (lambda x: x * float(np.random.rand()), "does not draw for each sample"),
    "a number of a tensor that is shared": (lambda x: x * torch.ones(()).item(), "gives Python a number"),
}


@pytest.mark.parametrize("name", LEAKS)
def test_vmap_is_left_where_a_model_may_see_more_than_one_sample(name: str) -> None:
    body, message = LEAKS[name]
    with pytest.raises(NoRule, match=message):
        vmap.run(Chunk(Model(body), plain, ones(), N), reason="")
    assert engine.per_sample(Model(body), plain, ones()).engine != "vmap"


def test_vmap_keeps_what_it_keeps_apart() -> None:
    """Draws of each sample, tensors and texts of nobody."""
    model = Model(lambda x: F.dropout(x, 0.5) * torch.rand(WIDE) * len(str(torch.tensor([2.0]))))
    found = vmap.run(Chunk(model, plain, ones(), N), reason="")
    assert distinct(found) == N


class Fussy(nn.Module):
    """Noise for each sample, between a look-up that fails on large samples and a generator that is set meanwhile."""

    def __init__(self, *, catches: bool) -> None:
        super().__init__()
        self.head, self.catches = nn.Linear(WIDE, 1, bias=False), catches

    def forward(self, x: Tensor) -> Tensor:
        noise, state = torch.randn_like(x), torch.get_rng_state()
        torch.manual_seed(0)
        try:
            F.embedding(x.detach().abs().long(), torch.ones(9, 1))
        except IndexError:
            if not self.catches:
                raise
        torch.set_rng_state(state)
        return self.head(x + noise)[:, 0]


def test_a_chunk_that_raises_leaves_the_generators_where_they_stood() -> None:
    model, (x, y) = Fussy(catches=False), ones()
    assert engine.per_sample(model, plain, (x, y)).engine == "single-backward"
    x[1] = LARGE
    before = GeneratorStates.now()
    with pytest.raises(IndexError):
        engine.per_sample(model, plain, (x, y))
    assert not before.moved()


@pytest.mark.parametrize("large", [(1,), (0, 2), (N - 1,), tuple(range(N))])
def test_samples_that_an_operation_fails_on_draw_their_own(large: tuple[int, ...]) -> None:
    model, (x, y) = Fussy(catches=True), ones()
    torch.manual_seed(1)
    before = engine.per_sample(model, plain, (x, y))
    after_before = GeneratorStates.now()
    x[list(large)] = LARGE
    torch.manual_seed(1)
    found = engine.per_sample(model, plain, (x, y))
    others = [i for i in range(N) if i not in large]
    assert "embedding raises" in found.reason
    assert distinct(found) == N
    assert torch.equal(found.norms[others], before.norms[others])
    assert after_before.moved() == (len(large) == N)
    weights = torch.rand(N)
    assert all(torch.equal(a, b) for a, b in zip(*(found.weighted_sum(weights).values() for _ in "ab"), strict=True))


def test_seeds_and_generators_are_many() -> None:
    drawn = seeds(100)
    assert len(set(drawn)) == 100
    sow(1)
    first = torch.rand(()).item(), random.random(), np.random.rand()
    sow(2)
    assert all(a != b for a, b in zip(first, (torch.rand(()).item(), random.random(), np.random.rand()), strict=True))
    sow(1)
    assert first == (torch.rand(()).item(), random.random(), np.random.rand())
