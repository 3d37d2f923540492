"""Plans and trainers with a ledger, by its path too, and without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpilot import Budget, Ledger, Plan, PrivateStep, Trainer
from dpilot.errors import InvalidInput, PrivacyWarning
from dpilot.privacy.notices import count_apart

DATA = TensorDataset(torch.zeros(64, 2), torch.zeros(64, dtype=torch.long))
TOTAL = Budget(3.0, 1e-6)


@pytest.fixture(autouse=True)
def first_in_its_process() -> Iterator[None]:
    with count_apart():
        yield


def plan(ledger: Ledger | Path | str | None = None, epsilon: float = 1.0) -> Plan:
    budget = Budget(epsilon, 1e-6)
    return Plan.calibrate(budget, size=64, sample_rate=1.0, steps=2, clipping="constant", ledger=ledger)


def fit(how: Plan, ledger: Path | None = None) -> None:
    Trainer(nn.Linear(2, 2), nn.CrossEntropyLoss(reduction="none"), how, ledger=ledger).fit(DATA)


def test_runs_without_a_ledger_say_so_and_add_up() -> None:
    with pytest.warns(PrivacyWarning, match="epsilon 1 at delta 1e-06 covers this fit alone"):
        fit(plan())
    with pytest.warns(PrivacyWarning, match="2 fits .* epsilon 2 at delta 2e-06"):
        fit(plan())
    model = nn.Linear(2, 2)
    with pytest.warns(PrivacyWarning, match="3 fits .* epsilon 3"):
        PrivateStep(model, nn.CrossEntropyLoss(reduction="none"), torch.optim.SGD(model.parameters()), plan())


def test_plans_take_their_part_of_a_ledgers_delta(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    ledger = Ledger.open(path, dataset="a", budget=TOTAL)
    for given in (ledger, path, str(path)):
        taken = plan(given)
        assert taken.budget.delta == pytest.approx(1e-6 / 3)
        fit(taken, path)
    with pytest.raises(InvalidInput, match="does not fit the ledger"):
        plan(path)
    assert ledger.spent().delta <= TOTAL.delta
    with pytest.warns(PrivacyWarning, match="covers this fit alone"):  # those above are not counted
        fit(plan())


def test_a_plan_for_a_ledger_that_is_not_there_yet_is_as_it_was_asked_for(tmp_path: Path) -> None:
    assert plan(tmp_path / "none.ledger").budget == Budget(1.0, 1e-6)
    assert not (tmp_path / "none.ledger").exists()
