"""Estimators, runs, ledgers and plans in a notebook: a small table each, escaped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpilot import Budget, Ledger, Plan, Trainer
from dpilot._html import html_table
from dpilot.linear import LinearRegression
from tests.report.samples import fitted
from tests.report.test_page import TRICKS, Elements

BUDGET = Budget(3.0, 1e-6)


def shown(each: Any) -> str:
    text: str = each._repr_html_() if callable(each._repr_html_) else each._repr_html_
    return text


def test_runs_plans_and_ledgers_show_themselves(tmp_path: Path) -> None:
    plan = Plan.calibrate(BUDGET, size=64, batch_size=64, steps=2, clipping="slack")
    ledger = Ledger.open(tmp_path / "toy.ledger", dataset="<toy>", budget=Budget(9.0, 1e-5))
    data = TensorDataset(torch.randn(64, 2), torch.zeros(64, dtype=torch.long))
    run = Trainer(nn.Linear(2, 2), nn.CrossEntropyLoss(reduction="none"), plan, ledger=ledger).fit(data)
    for each, told in ((plan, "noise multiplier"), (run, "left in the ledger"), (ledger, "&lt;toy&gt;")):
        assert told in shown(each)
        assert Elements(shown(each)).open == []


def test_an_estimator_shows_its_parameters_and_after_a_fit_its_price() -> None:
    X = np.random.default_rng(0).normal(size=(500, 2))
    model = LinearRegression(3.0)
    assert "epsilon, tuning included" not in shown(model)
    model.fit(X, X[:, 0])
    assert "epsilon, tuning included" in shown(model)


def test_whatever_was_typed_is_escaped() -> None:
    for trick in TRICKS:
        tags = {tag for tag, _ in Elements(html_table(trick, [trick], [[trick]])).found}
        assert tags <= {"table", "caption", "thead", "tbody", "tr", "th", "td"}
        assert "<script" not in fitted(privacy={**fitted().privacy, "unit": trick}).summary_table(trick)
