"""A probe in one call: one budget for center and head, nothing spent on what is refused."""

from __future__ import annotations

import math

import pytest
import torch

from dpilot import Budget, Ledger, privacy
from dpilot.errors import BudgetExceeded, InvalidInput
from dpilot.mechanism import seeded_noise
from dpilot.privacy import events
from dpilot.privacy.receipt import Receipt
from dpilot.transfer import Features, Head, fit_heads, fit_probe, probing
from dpilot.transfer.features import centred

BUDGET = Budget(2.0, 1e-5)
RECIPE = {"lr": 1.0, "steps": 10}


def rows(n: int = 400, offset: float = 0.0) -> Features:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % 3
    values = torch.eye(3)[labels] + 0.2 * torch.randn(n, 3, generator=generator) + offset
    return Features.of(values, labels, classes=3).unit()


def mu_squared(probe) -> float:
    found = [pair for entry in probe.entries for pair in events.leaves(entry.event)]
    return sum(times / leaf.noise_multiplier**2 for leaf, times in found)


@pytest.mark.parametrize("center", [None, "private", torch.tensor([0.5, 0.5, 0.5])])
def test_the_whole_budget_is_used_and_no_more(center):
    probe = fit_probe(rows(), BUDGET, center=center, **RECIPE)
    assert math.isclose(math.sqrt(mu_squared(probe)), privacy.gdp_mu(BUDGET), rel_tol=1e-9)
    assert 0.999 * BUDGET.epsilon < probe.spent.epsilon <= BUDGET.epsilon


def test_the_center_takes_its_share_of_mu_squared():
    probe = fit_probe(rows(), BUDGET, center="private", share=0.2, **RECIPE)
    center, head = probe.entries
    assert [center.purpose, head.purpose] == ["center", "head"]
    assert math.isclose(1 / center.event.noise_multiplier**2, 0.2 * mu_squared(probe), rel_tol=1e-9)


def test_a_given_center_moves_the_features_of_fit_and_prediction_alike():
    train, middle = rows(offset=3.0), torch.full((3,), 0.5)
    probe = fit_probe(train, BUDGET, size=400, center=middle, noise=seeded_noise(1), **RECIPE)
    head = Head(**RECIPE, noise_multiplier=math.sqrt(10) / privacy.gdp_mu(BUDGET))
    moved = centred(train, center=middle)
    (weights,) = fit_heads(moved, [head], receipts=[Receipt(head.event)], size=400, noises=[seeded_noise(1)])
    assert torch.allclose(probe.weights, weights, atol=1e-5)
    assert (probe.predict(train) == train.labels).double().mean() > 0.9


def test_a_bought_center_is_noisy_and_learns_what_an_offset_hides():
    probe = fit_probe(rows(4000, offset=3.0), BUDGET, center="private", lr=8.0, steps=20)
    exact = rows(4000, offset=3.0).values.mean(0)
    assert 0 < (probe.center - exact).norm() < 0.1
    assert (probe.predict(rows(4000, offset=3.0)) == rows(4000).labels).double().mean() > 0.9


@pytest.mark.parametrize(
    "wrong",
    [
        {"lr": float("nan")},
        {"steps": 0},
        {"steps": -4},
        {"size": "secret"},
        {"size": 0},
        {"center": "mean"},
        {"center": torch.zeros(4)},
        {"center": "private", "share": 0.0},
        {"center": "private", "share": 1.0},
        {"threshold": 0.0},
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_spent(tmp_path, wrong):
    book = Ledger.open(tmp_path / "probe.ledger", dataset="rows", budget=BUDGET)
    with pytest.raises(InvalidInput):
        fit_probe(rows(), BUDGET, ledger=book, **(RECIPE | wrong))
    assert book.spent().epsilon == 0


def test_a_ledger_by_path_is_charged_and_then_refuses(tmp_path):
    path = tmp_path / "probe.ledger"
    fit_probe(rows(), BUDGET, ledger=path, center="private", **RECIPE)
    assert 0.99 * BUDGET.epsilon < Ledger.read(path).spent().epsilon <= BUDGET.epsilon
    with pytest.raises(BudgetExceeded):
        fit_probe(rows(), BUDGET, ledger=path, **RECIPE)


def test_a_public_size_is_named_as_unprotected():
    assert any("number of records" in what for what in fit_probe(rows(), BUDGET, **RECIPE).unprotected)
    assert not any("number of" in what for what in fit_probe(rows(), BUDGET, size=400, **RECIPE).unprotected)


def test_records_of_a_declared_number_are_added_up_in_a_secret_order(monkeypatch):
    orders = []

    def listen(features, *arguments, **options):
        orders.append(features.values[:, 0].tolist())
        return fit_heads(features, *arguments, **options)

    monkeypatch.setattr(probing, "fit_heads", listen)
    for _ in range(2):
        fit_probe(rows(), BUDGET, size=400, **RECIPE)
    first, second = orders
    assert first != second
    assert sorted(first) == sorted(second) == sorted(rows().values[:, 0].tolist())


def test_no_records_at_all_cost_what_any_do():
    probe = fit_probe(rows().take([]), BUDGET, size=400, center="private", **RECIPE)
    assert torch.isfinite(probe.weights).all()
    assert probe.spent.epsilon <= BUDGET.epsilon
