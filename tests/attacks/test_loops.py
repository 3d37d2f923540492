"""Attacks on loops of one's own: batches that are used twice."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpilot import Budget, Plan, PrivateStep, poisson_loader
from dpilot.errors import InvalidInput
from dpilot.privacy.ledger import Ledger
from tests.attacks.case import normal

LOSS = nn.CrossEntropyLoss(reduction="none")
STEPS = 6


def own_loop(rate: float, ledger: Ledger) -> tuple[PrivateStep, torch.utils.data.DataLoader]:
    plan = Plan.calibrate(Budget(2.0, 1e-5), size=64, sample_rate=rate, steps=STEPS, clipping="constant")
    model, records = nn.Linear(2, 2), TensorDataset(normal(64, 2), torch.zeros(64, dtype=torch.long))
    loader = poisson_loader(records, plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return PrivateStep(model, LOSS, optimizer, plan, ledger=ledger, example=records[:2]), loader


def test_a_batch_from_before_the_loader_began_anew_moves_no_count(tmp_path) -> None:
    """It raised IndexError and was counted: all batches behind it, and one of them twice in the next round."""
    ledger = Ledger.open(tmp_path / "own.ledger", dataset="own", budget=Budget(2.0, 1e-5))
    step, loader = own_loop(0.5, ledger)
    early = next(iter(loader))
    round_two, used = iter(loader), []
    with suppress(InvalidInput):
        step(early)
    for _ in range(3):
        batch = next(round_two)
        with suppress(InvalidInput):
            step(batch)
            used.append(tuple(batch.issued.indices))
    for batch in loader:
        step(batch)
        used.append(tuple(batch.issued.indices))
    assert len(used) == len(set(used)) == STEPS
