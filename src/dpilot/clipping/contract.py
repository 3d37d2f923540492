"""The contract of a clipping rule, as checks that raise AssertionError: for the tests of a rule in another package.

    from dpilot.clipping import contract

    def test_my_rule_keeps_the_contract():
        contract.check_all(MyRule())

Every named rule of dpilot goes through these, and broken rules too, to see that they notice.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dpilot.clipping import State
from dpilot.clipping.base import HIGHEST, LOWEST

PUBLIC: dict[str, Any] = {"noise_multiplier": 1.0, "expected_batch_size": 512, "dimension": 10}
SIZES = (0, 1, 7, 5000)
SPECIAL = (0.0, 1e-45, 1e-30, 0.5, 1.0, 1e4, 1e30, 3e38, math.inf, -math.inf, math.nan)

Draw = Callable[[int, float, torch.Generator], Tensor]


def _uniform(n: int, generator: torch.Generator) -> Tensor:
    return torch.rand(n, generator=generator, dtype=torch.float64)


FAMILIES: dict[str, Draw] = {
    "random": lambda n, c, g: 5 * _uniform(n, g),
    "heavy-tailed": lambda n, c, g: _uniform(n, g) ** -2.0,
    "constant": lambda n, c, g: torch.full((n,), 1.0, dtype=torch.float64),
    "bimodal": lambda n, c, g: (_uniform(n, g) < 0.4).double(),
    "zero": lambda n, c, g: torch.zeros(n, dtype=torch.float64),
    "subnormal": lambda n, c, g: 1e-40 * _uniform(n, g),
    "around the threshold": lambda n, c, g: c * (1 + 1e-7 * torch.randint(-3, 4, (n,), generator=g)),
    "huge": lambda n, c, g: torch.full((n,), 1e30, dtype=torch.float64),
    "inf": lambda n, c, g: torch.full((n,), math.inf, dtype=torch.float64),
    "nan": lambda n, c, g: torch.full((n,), math.nan, dtype=torch.float64),
    "everything": lambda n, c, g: torch.tensor(SPECIAL, dtype=torch.float64)[
        torch.randint(len(SPECIAL), (n,), generator=g)
    ],
}


def draw(family: str, n: int, state: State, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Norms of a family, shaped for the rule of the state: (n,), or (n, groups) for a layer-wise one."""
    groups = groups_of(state)
    norms = FAMILIES[family](n * max(groups, 1), float(state.threshold), generator).to(dtype)
    return norms.reshape(n, groups) if groups else norms


def groups_of(state: State) -> int:
    """How many layer groups the state is for; 0 for a rule on one norm a record."""
    inner = state
    while inner.inner is not None:
        inner = inner.inner
    return inner.threshold.numel() if inner.threshold.ndim else 0


def check_step(rule: Any, norms: Tensor, state: State) -> tuple[Tensor, Tensor]:
    """One call of clip: shapes, finiteness first, then the bound in float64, then the null record."""
    weights, extras = rule.clip(norms, state)
    assert weights.shape == norms.shape
    assert extras.shape[0] == norms.shape[0]
    assert extras.ndim == 2
    assert weights.dtype == extras.dtype == norms.dtype
    assert torch.isfinite(weights).all()  # first: max() would ignore a nan
    assert torch.isfinite(extras).all()
    assert (weights >= 0).all()
    finite = torch.isfinite(norms) & (norms >= 0)
    n, w, x = torch.where(finite, norms, 0.0).double(), weights.double(), extras.double()
    squares = (w * n) ** 2
    joint = (squares.sum(-1) if norms.ndim == 2 else squares) + x.pow(2).sum(-1)
    bound = float(state.bound)
    assert math.isfinite(bound)
    assert bound > 0
    assert torch.isfinite(joint).all()
    if len(norms):
        assert float(joint.max()) <= bound**2
        assert float(joint.max().sqrt()) <= float(torch.tensor(bound, dtype=torch.float32))
    whole = finite.all(-1) if norms.ndim == 2 else finite
    assert (weights[~whole] == 0).all()
    assert (extras[~whole] == 0).all()
    return weights, extras


def check_limits(rule: Any, state: State) -> None:
    """The threshold lies in [floor, ceiling], and is never 0 or inf, in every form of the rule."""
    while state.inner is not None:
        rule, state = rule.rule, state.inner
    low = max(getattr(rule, "floor", 0.0), LOWEST)
    high = min(getattr(rule, "ceiling", math.inf), HIGHEST)
    assert (state.threshold >= low).all()
    assert (state.threshold <= high).all()


def release(extras: Tensor, state: State, generator: torch.Generator, sigma: float = 1.0) -> Tensor:
    """What comes back through the door: the sum of the extras with Gaussian noise of sigma times the bound."""
    noise = torch.randn(extras.shape[1], generator=generator, dtype=torch.float64)
    return extras.double().sum(0) + sigma * float(state.bound) * noise


def check_run(rule: Any, dtype: torch.dtype, steps: int = 50, public: dict[str, Any] = PUBLIC) -> State:
    """An adaptive run through every family of norms, ``steps`` each, and every batch size."""
    generator = torch.Generator().manual_seed(0)
    state: State = rule.init(**public)
    check_limits(rule, state)
    for family in FAMILIES:
        check_step(rule, draw(family, 64, state, generator, dtype), state)  # one-shot measures in the first state only
    for family in FAMILIES:
        for step in range(steps):
            size = SIZES[3] if step % 16 == 5 else SIZES[step % 3]
            norms = draw(family, size, state, generator, dtype)
            _, extras = check_step(rule, norms, state)
            state = rule.update(state, release(extras, state, generator))
            check_limits(rule, state)
    return state


def states(rule: Any, steps: int = 12, public: dict[str, Any] = PUBLIC) -> list[State]:
    """A few states that a run on random norms reaches."""
    generator = torch.Generator().manual_seed(1)
    reached = [rule.init(**public)]
    for _ in range(steps):
        state = reached[-1]
        norms = draw("heavy-tailed", 64, state, generator, torch.float64)
        reached.append(rule.update(state, release(rule.clip(norms, state)[1], state, generator)))
    return reached


def check_rows(rule: Any, dtype: torch.dtype) -> None:
    """Clip equals row-by-row clip and clip in chunks, bit for bit, and one record does not touch another."""
    generator = torch.Generator().manual_seed(2)
    for state in states(rule)[::6]:
        parts = [draw(family, 7, state, generator, dtype) for family in FAMILIES]
        norms = torch.cat([*parts, draw("everything", 30, state, generator, dtype)])
        together = rule.clip(norms, state)
        for size in (1, 7, 64):
            chunks = [rule.clip(chunk, state) for chunk in torch.split(norms, size)]
            for whole, pieces in zip(together, zip(*chunks, strict=True), strict=True):
                assert torch.equal(whole, torch.cat(pieces))
        other = norms.clone()
        other[5] = 123.0
        for before, after in zip(together, rule.clip(other, state), strict=True):
            rest = torch.arange(len(norms)) != 5
            assert torch.equal(before[rest], after[rest])


def check_public(rule: Any) -> None:
    """States depend on what was released and on nothing else: not on norms, not on realised batch sizes."""
    generator = torch.Generator().manual_seed(3)
    one = two = rule.init(**PUBLIC)
    for step in range(30):
        _, extras = rule.clip(draw("random", 40, one, generator, torch.float32), one)
        released = release(extras, one, generator)
        one = rule.update(one, released)
        before = two.to_dict()
        rule.clip(draw("heavy-tailed", 3 + 50 * (step % 4), two, generator, torch.float64), two)
        assert two.to_dict() == before
        two = rule.update(two, released)
        assert one.to_dict() == two.to_dict()


def check_json(rule: Any) -> None:
    """A run saved to JSON and loaded goes on exactly as the run that was not."""
    generator = torch.Generator().manual_seed(4)
    for state in states(rule)[::3]:
        loaded = State.from_dict(json.loads(json.dumps(state.to_dict(), allow_nan=False)))
        assert loaded == state
        norms = draw("random", 50, state, generator, torch.float32)
        ours, theirs = rule.clip(norms, state), rule.clip(norms, loaded)
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])
        released = release(ours[1], state, generator)
        assert rule.update(state, released).to_dict() == rule.update(loaded, released).to_dict()


def settle(rule: Any, norm: float, steps: int = 60, public: dict[str, Any] = PUBLIC) -> State:
    """The state after a noiseless run on batches of one norm."""
    state: State = rule.init(**public)
    shape = (int(public["expected_batch_size"]), groups_of(state) or 1)
    for _ in range(steps):
        norms = torch.full(shape, norm, dtype=torch.float64)
        _, extras = rule.clip(norms if groups_of(state) else norms[:, 0], state)
        state = rule.update(state, extras.sum(0))
    return state


def check_direction(rule: Any) -> None:
    """Large norms never lower the threshold, small ones never raise it, and a rule that adapts does follow."""
    first = float(rule.init(**PUBLIC).threshold)
    up, down = float(settle(rule, 50.0).threshold), float(settle(rule, 0.02).threshold)
    if adapts(rule):
        assert up > first
        assert down < first
    else:
        assert up == down == first


def adapts(rule: Any) -> bool:
    """Whether the rule sends extras, which is what it could learn from."""
    state = rule.init(**PUBLIC)
    return bool(rule.clip(draw("random", 2, state, torch.Generator(), torch.float32), state)[1].shape[1] > 0)


def check_device(rule: Any) -> None:
    """Neither clip nor update reads a value back: on the meta device there is none to read."""
    meta = torch.device("meta")
    for state in states(rule)[::4]:
        ghost = state.to(meta)
        norms = torch.empty((8, groups_of(state)) if groups_of(state) else 8, device=meta)
        _, extras = rule.clip(norms, ghost)
        assert rule.update(ghost, extras.sum(0)).threshold.device == meta


def check_all(rule: Any) -> None:
    """The whole contract, for a rule of its own."""
    for dtype in (torch.float32, torch.float64):
        check_run(rule, dtype)
        check_rows(rule, dtype)
    check_public(rule)
    check_json(rule)
    check_direction(rule)
    check_device(rule)
