"""Runs that would train nothing, said before they are paid: from made-up records and declared numbers."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpilot import Budget, Plan, PrivateStep, Trainer
from dpilot.train.silent import Outlook

X, Y = torch.randn(40, 4), torch.arange(40) % 2
LOSS = nn.CrossEntropyLoss(reduction="none")


def plan(epsilon=8.0, steps=3):
    return Plan.calibrate(Budget(epsilon, 1e-3), size=40, batch_size=20, steps=steps)


def said(caplog, model, loss=LOSS, **how):
    caplog.clear()
    before = [p.detach().clone() for p in model.parameters()]
    with caplog.at_level(logging.WARNING, logger="dpilot.train"):
        trainer = Trainer(model, loss, how.pop("plan", None) or plan(), **{"lr": 0.5, "example": (X[:2], Y[:2]), **how})
        trainer._job.dry_run(trainer._job.form(None))
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))
    return [each.getMessage() for each in caplog.records if "learn nothing" in each.getMessage()]


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x):
        return self.used(x)


class Detached(Unused):
    def forward(self, x):
        return self.unused(x) + self.used(x).detach()


@pytest.mark.parametrize(
    ("model", "name"), [(Unused, "unused.weight, unused.bias"), (Detached, "used.weight, used.bias")]
)
def test_parameters_that_cannot_move(caplog, model, name):
    (sentence,) = said(caplog, model())
    assert f"{name} cannot move" in sentence


def test_a_loss_that_ignores_the_output(caplog):
    (sentence,) = said(caplog, nn.Linear(4, 2), lambda out, y: 0 * out.sum(1) + y)
    assert "ignores the model's output" in sentence


def test_adapters_that_detached(caplog):
    peft = pytest.importorskip("peft")

    class Base(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.last(x + 0 * self.first(x).detach())

    model = peft.get_peft_model(Base(), peft.LoraConfig(r=2, target_modules=["first"], modules_to_save=["last"]))
    (sentence,) = said(caplog, model)
    assert "are detached" in sentence
    assert "lora_A" in sentence
    assert "last" not in sentence


def test_weights_that_begin_at_zero_are_not_said_to_stand_still(caplog):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    nn.init.zeros_(model[2].weight)
    assert not said(caplog, model)


@pytest.mark.parametrize(("optimizer", "lr"), [("sgd", 1e-9), ("adam", 1e-12), ("sgd", 0.5), ("adam", 0.01)])
def test_a_learning_rate_that_moves_nothing(caplog, optimizer, lr):
    found = said(caplog, nn.Linear(4, 2), optimizer=optimizer, lr=lr)
    assert ["the learning rate is" in each for each in found] == ([True] if lr < 1e-6 else [])


def test_an_optimizer_that_was_made_before_the_adapters(caplog):
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    with caplog.at_level(logging.WARNING, logger="dpilot.train"):
        PrivateStep(model, LOSS, torch.optim.SGD(model[1].parameters(), lr=0.1), plan(), example=(X[:2], Y[:2]))
    assert "the optimizer does not hold 0.weight, 0.bias" in caplog.text


def test_noise_that_drowns_the_run_and_what_would_help(caplog):
    wide = nn.Sequential(nn.Linear(4, 5000), nn.ReLU(), nn.Linear(5000, 2))
    (sentence,) = said(caplog, wide, plan=plan(epsilon=0.5))
    assert "noise will be" in sentence
    hopeless = Outlook.of(chosen := plan(epsilon=0.5), 1000)
    assert hopeless.hopeless
    for helped in (
        Outlook.of(chosen, hopeless.parameters),
        Outlook.of(Plan.calibrate(Budget(hopeless.epsilon, 1e-3), size=40, batch_size=20, steps=3), 1000),
        Outlook.of(Plan.calibrate(Budget(0.5, 1e-5), size=hopeless.size, sample_rate=0.5, steps=3), 1000),
    ):
        assert helped.ratio < 2


def test_what_is_said_depends_on_no_record(caplog):
    sentences = []
    for data in (TensorDataset(X, Y), TensorDataset(X * 1e6, 1 - Y)):
        caplog.clear()
        torch.manual_seed(0)
        with caplog.at_level(logging.WARNING, logger="dpilot.train"):
            Trainer(Unused(), LOSS, plan(), lr=0.5).fit(data)
        sentences.append([each.getMessage() for each in caplog.records])
    assert sentences[0] == sentences[1] != []
