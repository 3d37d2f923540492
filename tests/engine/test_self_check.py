"""The numeric self-check finds what is wrong and says nothing about what is right."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dpilot import engine
from dpilot.engine.layers import linear
from tests.contracts.zoo import DEVICE, ZOO, build, cross_entropy

QUICK = {
    "mlp",
    "conv2d",
    "embedding",
    "lstm",
    "transformer_encoder",
    "lora",
    "tied_embeddings",
    "rare_operations",
    "bert",
}


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # torch is slow there on CPU, and says so
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in ZOO])
def test_nothing_is_found_in_the_zoo(name: str) -> None:
    case = build(name, torch.float32)
    assert engine.self_check(case.model, case.loss, case.batch, per_batch=case.per_batch) == []


def shapes() -> tuple[Tensor, Tensor]:
    return torch.zeros(1, 6), torch.zeros(1, dtype=torch.long)


class Centred(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


@pytest.mark.parametrize("model", [Centred(6, 5), nn.Sequential(nn.Dropout(0.5), Centred(6, 5))])
def test_mixing_is_found(model: nn.Module) -> None:
    (problem,) = engine.self_check(model.to(DEVICE), cross_entropy, shapes())
    assert "depends on the others" in str(problem)
    assert all(module.training for module in model.modules())


def test_structural_problems_come_first() -> None:
    (problem,) = engine.self_check(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)), cross_entropy, shapes())
    assert problem.where == "1 (BatchNorm1d)"
    assert "replace_batch_norm" in problem.remedy


def test_a_wrong_norm_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear.Product, "magnitude", lambda self: self.inputs.new_ones(self.inputs.shape[0]))
    found = engine.self_check(nn.Linear(6, 5), cross_entropy, shapes())
    assert [problem.where for problem in found] == ["norms"]


def test_a_model_that_fails_is_a_problem_not_an_exception() -> None:
    (problem,) = engine.self_check(nn.Linear(7, 5), cross_entropy, shapes())
    assert "made-up samples" in problem.what


def test_a_scalar_loss_is_reported_with_its_remedy() -> None:
    (problem,) = engine.self_check(nn.Linear(6, 5), nn.CrossEntropyLoss(), shapes())
    assert 'reduction="none"' in str(problem)


def test_random_numbers_and_modes_are_left_alone() -> None:
    model, before = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.3)), torch.get_rng_state()
    assert engine.self_check(model, cross_entropy, shapes()) == []
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    assert model[1].training
