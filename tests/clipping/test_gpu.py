"""On a CUDA device: no step waits for it, and the bound holds there too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from dpilot import clipping
from dpilot.clipping import contract

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]

RULES = [pytest.param(clipping.get(name), id=name) for name in clipping.names()]
RULES += [pytest.param(clipping.get(name, normalized=True), id=f"{name}-normalized") for name in clipping.names()]
RULES += [pytest.param(clipping.get(name, groups=3), id=f"{name}-groups") for name in ("constant", "quantile", "slack")]


@pytest.fixture
def no_waiting() -> Iterator[Any]:
    yield lambda: torch.cuda.set_sync_debug_mode("error")
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("rule", RULES)
def test_no_step_waits_for_the_device(rule: Any, no_waiting: Any) -> None:
    state = rule.init(**contract.PUBLIC, device="cuda")
    shape = (64, contract.groups_of(state)) if contract.groups_of(state) else (64,)
    norms = 5 * torch.rand(shape, device="cuda")
    no_waiting()
    for _ in range(5):
        _, extras = rule.clip(norms, state)
        state = rule.update(state, extras.sum(0))
    assert state.threshold.is_cuda


def test_waiting_would_be_noticed(no_waiting: Any) -> None:
    state = clipping.get("constant").init(**contract.PUBLIC, device="cuda")
    no_waiting()
    with pytest.raises(RuntimeError, match="synchroniz"):
        float(state.threshold)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", RULES)
def test_joint_norm_never_exceeds_bound(rule: Any, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    state = rule.init(**contract.PUBLIC)  # starts on the CPU and moves with the first release
    for family in contract.FAMILIES:
        for size in contract.SIZES[1:]:
            norms = contract.draw(family, size, state, generator, dtype).cuda()
            _, extras = contract.check_step(rule, norms, state)
            state = rule.update(state, contract.release(extras.cpu(), state, generator).cuda())
            contract.check_limits(rule, state)
    assert state.threshold.is_cuda


@pytest.mark.parametrize("rule", RULES)
def test_clip_is_row_by_row(rule: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    state = rule.init(**contract.PUBLIC, device="cuda")
    families = [contract.draw(family, 9, state, generator, torch.float32) for family in contract.FAMILIES]
    norms = torch.cat(families).cuda()
    together = rule.clip(norms, state)
    alone = [rule.clip(norm, state) for norm in norms.split(1)]
    for whole, pieces in zip(together, zip(*alone, strict=True), strict=True):
        assert torch.equal(whole, torch.cat(pieces))
