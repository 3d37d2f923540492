"""Attacks on what a fit pays: nothing for what is refused, its budget and no more for what is done."""

from __future__ import annotations

import random

import numpy as np
import pytest

import dpilot
from dpilot.errors import BudgetExceeded, InvalidInput
from dpilot.fit import learners
from dpilot.fit.classifier import AutoClassifier
from dpilot.fit.declaration import FitOptions, declare_fit
from dpilot.fit.keys import FitKeys
from dpilot.fit.payment import open_payments
from dpilot.fit.pipeline import plan_fit
from dpilot.fit.table import fit_table
from dpilot.privacy.budget import Budget
from dpilot.privacy.ledger import Ledger
from tests.fit.helpers import SCHEMA, frame, numeric_frame, numeric_schema

pytestmark = pytest.mark.filterwarnings("ignore::dpilot.errors.PrivacyWarning")


@pytest.mark.parametrize(
    ("options", "total", "bound", "refusal"),
    [
        ({"stop_below": 5.0}, 5.0, "basic", InvalidInput),
        ({"stop_below": float("nan")}, 5.0, "basic", InvalidInput),
        ({"device": "cuda:977"}, 5.0, "basic", InvalidInput),
        ({"device": "nowhere"}, 5.0, "basic", InvalidInput),
        ({}, 0.5, "basic", BudgetExceeded),
        ({}, 0.5, "gdp", BudgetExceeded),
        ({}, 0.9, "rdp", BudgetExceeded),
        ({"model": "logistic", "epochs": 1}, 5.0, "gdp", InvalidInput),
    ],
)
def test_what_is_refused_has_paid_nothing_not_even_the_health_check(tmp_path, options, total, bound, refusal):
    book = Ledger.open(tmp_path / "a.ledger", dataset="a", budget=Budget(total, 1e-4), bound=bound)
    for folder in (None, tmp_path / "run"):
        with pytest.raises(refusal):
            fit_table(frame(200), SCHEMA, epsilon=1.0, delta=1e-5, size=200, ledger=book, run_folder=folder, **options)
    if refusal is BudgetExceeded:
        again = {"size": 200, "ledger": book, "run_folder": tmp_path / "run", "resume": True}
        with pytest.raises(BudgetExceeded):
            fit_table(frame(200), SCHEMA, epsilon=1.0, delta=1e-5, **again, **options)
    assert book.entries() == ()


@pytest.mark.parametrize("size", ["private", "public", 400])
def test_a_fit_of_any_size_is_saved_and_loaded(tmp_path, size):
    fit_table(frame(400), SCHEMA, epsilon=1.0, delta=1e-5, size=size, stop_below=0.0, run_folder=tmp_path / "run")
    assert len(dpilot.load(tmp_path / "run").predict(frame(20))) == 20


def test_classes_that_cannot_be_saved_are_refused_before_anything_is_paid(tmp_path):
    X = np.random.default_rng(0).normal(size=(200, 2))
    days = np.array(["2020-01-01", "2020-01-02"], dtype="datetime64[D]")
    model = AutoClassifier(classes=list(days), checkpoint=tmp_path / "run", ledger=tmp_path / "a.ledger", size=200)
    with pytest.raises(InvalidInput, match="neither texts nor numbers"):
        model.fit(X, days[(X[:, 0] > 0).astype(int)])
    assert not (tmp_path / "a.ledger").exists() or Ledger.read(tmp_path / "a.ledger").entries() == ()


@pytest.mark.parametrize("seed", range(24))
def test_both_commitments_cost_at_most_the_budget_and_are_admitted_by_a_ledger_of_it(tmp_path, seed):
    rng = random.Random(seed)
    size = rng.choice(["private", 10, 1000, 10**6])
    delta = min(10 ** rng.uniform(-12, -4), 1.0 if size == "private" else 0.5 / size)
    budget = Budget(10 ** rng.uniform(-1.5, 1.5), delta)
    numeric = seed % 2 == 0
    columns = (numeric_schema() if numeric else SCHEMA).to_dict()["columns"]
    columns["signal"]["bounds"] = rng.choice(["buy", [-3, 3]])
    schema, data = dpilot.Schema.from_dict({"columns": columns}), (numeric_frame if numeric else frame)(60)
    for bound in ("basic", "gdp"):
        book = Ledger.open(tmp_path / f"{bound}.ledger", dataset="a", budget=budget, bound=bound)
        declared, _ = declare_fit(
            data, schema, epsilon=budget.epsilon, delta=delta, size=size, options=FitOptions(), ledger=book
        )
        plan = plan_fit(declared, bound, learners.learner(declared))
        keys, payments = FitKeys.draw(), open_payments(book, declared.budget, "a", None, gaussian=True)
        payments.commit(plan.health_stages(keys.name), plan.health)
        payments.commit(plan.stages(keys.split(plan.shares).id), plan.rest)
        assert 0.98 * budget.epsilon <= book.spent().epsilon <= budget.epsilon
        assert book.spent().delta <= budget.delta
