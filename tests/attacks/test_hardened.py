"""Hardened training in chunks: a record of any numbers moves its own rounded vector, and no bit of another's."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dpilot import Budget, Plan, Trainer
from dpilot.engine import single_backward
from dpilot.noise import KeyedNoise
from dpilot.numerics import grid

ROWS = 9
LOSS = nn.CrossEntropyLoss(reduction="none")


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 3))


def tokens() -> nn.Module:
    """Twelve numbers as four tokens of three, whose products may cancel."""
    return nn.Sequential(nn.Unflatten(1, (4, 3)), nn.Linear(3, 6), nn.Flatten(), nn.Linear(24, 3))


def network() -> nn.Module:
    layers = nn.Conv2d(1, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(30, 3)
    return nn.Sequential(nn.Unflatten(1, (1, 3, 4)), *layers)


def extreme(value: float) -> Tensor:
    return torch.full((12,), value)


def cancelling() -> Tensor:
    """Long tokens of opposite signs, with little between them."""
    return torch.tensor([1e6, 1e-6, 0.0, -1e6, 1e-6, 0.0] * 2)


HOSTILE = [extreme(math.nan), extreme(math.inf), extreme(3e38)]
ODD = [extreme(1e-42), extreme(-1e15), cancelling(), torch.eye(12)[3] * 1e-30, extreme(0.0)]


def first_sum(
    make: Callable[[], nn.Module], record: Tensor, monkeypatch: pytest.MonkeyPatch
) -> tuple[np.ndarray, float]:
    """The sum of the first step of a full batch, ``record`` the fourth of it, and the bound that is paid for."""
    torch.manual_seed(0)
    model, x = make(), torch.randn(ROWS, 12)
    x[3] = record
    plan = Plan.calibrate(Budget(2.0, 1e-5), size=ROWS, batch_size=ROWS, steps=1, clipping="constant")
    seen = []

    def listen(self: KeyedNoise, values: list, *, bound: float, noise_multiplier: float) -> list:
        seen.append((np.concatenate([np.ravel(value) for value in values]), bound))
        return values

    with monkeypatch.context() as patch:
        patch.setattr(KeyedNoise, "gaussian", listen)
        run = Trainer(model, LOSS, plan, lr=0.1, noise="hardened", test_seed=1)
        run.fit(TensorDataset(x, torch.arange(ROWS) % 3))
    return seen[0]


@pytest.mark.parametrize("make", [perceptron, tokens, network])
def test_a_record_of_any_numbers_moves_no_bit_of_another(
    make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    without, bound = first_sum(make, HOSTILE[0], monkeypatch)
    for record in HOSTILE[1:]:
        assert (first_sum(make, record, monkeypatch)[0] == without).all()
    for record in ODD:
        assert np.linalg.norm(first_sum(make, record, monkeypatch)[0] - without) <= bound


def test_it_is_seen_where_records_share_a_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with factors on a grid of the longest of them: one record of a chunk would round all others anew."""
    sound = grid.sum_products

    def shared(inputs: Tensor, errors: Tensor, weights: Tensor, grids: tuple[float, float]) -> Tensor:
        longest = float(inputs.norm(dim=1).max())
        return sound(inputs, errors, weights, (grids[0] * 2.0 ** math.frexp(longest)[1], grids[1]))

    monkeypatch.setattr(single_backward, "sum_products", shared)
    without, bound = first_sum(perceptron, HOSTILE[0], monkeypatch)
    moved = [np.linalg.norm(first_sum(perceptron, each, monkeypatch)[0] - without) for each in ODD]
    assert max(moved) > bound
