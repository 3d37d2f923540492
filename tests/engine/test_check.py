"""What can be told by looking: every problem at once, each with a remedy."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from dpilot import engine
from tests.contracts.zoo import ZOO, build


@pytest.mark.parametrize("name", ZOO)
def test_the_zoo_is_ready(name: str) -> None:
    assert engine.check(build(name, torch.float32).model) == []


def test_every_problem_is_listed_with_where_and_remedy() -> None:
    model = nn.Sequential(
        nn.BatchNorm1d(4),
        nn.InstanceNorm1d(4, track_running_stats=True),
        nn.Embedding(5, 4, max_norm=1.0),
        nn.EmbeddingBag(5, 4, scale_grad_by_freq=True),
        nn.SyncBatchNorm(4),
    )
    found = engine.check(model)
    assert [p.where.split()[0] for p in found] == ["0", "1", "2", "3", "4"]
    assert all(p.what and p.remedy for p in found)


def test_a_model_without_trained_parameters_is_a_problem() -> None:
    (problem,) = engine.check(nn.Linear(2, 2).requires_grad_(False))
    assert "requires_grad" in problem.remedy


def test_lazy_parameters_are_problems_and_complex_ones_are_not() -> None:
    assert "lazy" in engine.check(nn.LazyLinear(3))[0].what
    model = nn.Linear(2, 2)
    model.phase = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    assert engine.check(model) == []


def test_modules_spread_over_devices_or_processes_are_problems() -> None:
    """FSDP cannot be built without an accelerator and ranks, so its class alone is looked at."""
    spread = FullyShardedDataParallel.__new__(FullyShardedDataParallel)
    nn.Module.__init__(spread)
    spread._modules["_fsdp_wrapped_module"] = nn.Linear(2, 2)
    (problem,) = engine.check(nn.Sequential(spread))
    assert "0 (FullyShardedDataParallel)" in problem.where
    assert "spread over processes" in problem.what
    assert "behind the engine's back" in engine.check(nn.DataParallel(nn.Linear(2, 2)))[0].what


def test_batch_norm_in_eval_mode_is_fine() -> None:
    assert engine.check(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).eval()) == []
    assert engine.check(nn.BatchNorm1d(2, track_running_stats=False).eval()) != []


def test_replacing_batch_norm_keeps_affine_values_modes_and_names() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Sequential(nn.BatchNorm2d(8), nn.ReLU()), nn.BatchNorm2d(8, affine=False)
    )
    with torch.no_grad():
        model[1][0].weight.uniform_()
    model[1][0].bias.requires_grad_(False)
    weight = model[1][0].weight.clone()
    replaced = engine.replace_batch_norm(model, groups=4)
    assert replaced is model
    assert isinstance(model[1][0], nn.GroupNorm)
    assert model[1][0].num_groups == 4
    assert torch.equal(model[1][0].weight, weight)
    assert not model[1][0].bias.requires_grad
    assert not model[2].affine
    assert engine.check(model) == []
    assert isinstance(engine.replace_batch_norm(nn.BatchNorm1d(6)), nn.GroupNorm)
