"""One linear head on unit rows of public features, full batch: a recipe of a grid, or a way of tuning, all paid.

With "groups" figures are by group too.

| method | what | settings |
|---|---|---|
| recipe | one run with the whole budget; choosing it is not paid | walk (C r / (mu n)), steps; or lr, steps |
| linear_scaling, autopilot, data-free | the library's, tuning inside the budget | |
| paper | linear scaling as Panda et al.: threshold 1, a line in epsilon, the whole box | epsilons, degree |
| random | one run of a draw from three decades | |
| train_at | one run at the cell's epsilon, by a law that was paid for at another; each pays for itself | searched |
| not private | logistic regression | |
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch

from benchmarks.papers import data as sets
from benchmarks.papers.cell import Cell
from benchmarks.papers.lines import Figures
from benchmarks.papers.networks import scores
from dpilot import Budget, tune
from dpilot.privacy import gdp_mu
from dpilot.privacy.receipt import Receipt
from dpilot.transfer.features import Features
from dpilot.transfer.probe import predict
from dpilot.tune.candidate import Candidate
from dpilot.tune.defaults import TUNING_SHARE
from dpilot.tune.outlays import whole_outlay

DELTA = 1e-5


def measure(cell: Cell, device: str) -> Figures:
    """The accuracy of what a way hands out, on the test part."""
    size = 1_000 if cell.settings.get("quick") else None
    train, test = (load(cell.data, part, device, size) for part in ("train", "test"))
    budget = Budget(cell.epsilon, DELTA)
    if cell.method == "not private":
        from benchmarks.transfer.fitting import plain

        return {"accuracy": plain(train, test)}
    weights, found = _WAYS[cell.method](train, budget, dict(cell.settings))
    found = {"accuracy": accuracy(test, weights), **found}
    if cell.settings.get("groups"):
        part = sets.load(cell.data, "test").first(len(test))
        found |= scores(predict(test, torch.as_tensor(weights).to(test.values.device)).cpu(), part)
    return found


@lru_cache(maxsize=4)
def load(name: str, part: str, device: str, size: int | None = None) -> Features:
    """Unit rows of a data set's features, or of the table's own columns and a constant."""
    found = sets.load(name, part)
    inputs = found.inputs[:size]
    if "/" not in name:
        inputs = torch.cat([inputs, torch.ones(len(inputs), 1)], 1)
    return Features.of(inputs, found.labels[:size], found.classes).unit().to(device)


def accuracy(test: Features, weights: Any) -> float:
    weights = torch.as_tensor(weights).to(test.values.device)
    return float((predict(test, weights) == test.labels).double().mean())


def recipe(train: Features, budget: Budget, settings: dict[str, Any]) -> tuple[Any, Figures]:
    from benchmarks.tune.choices import walked, whole_task

    task, outlay = whole_task(train), whole_outlay(budget)
    if "walk" in settings:
        r = settings["walk"] * gdp_mu(budget) * len(train) / task.threshold
        candidate = walked(r, tune.head_options(task, budget)["box"])
    else:
        candidate = Candidate(settings["lr"], settings["steps"])
    (weights,) = task.train([outlay.trial(candidate, Receipt(outlay.event))])
    return weights, {"r": candidate.r, "lr": candidate.lr, "steps": candidate.steps}


def scaling(train: Features, budget: Budget, settings: dict[str, Any]) -> tuple[Any, Figures]:
    from benchmarks.tune.choices import scaled, split_task

    del settings
    tuned = scaled(split_task(train, budget), budget)
    return tuned.model, _said(tuned)


def paper(train: Features, budget: Budget, settings: dict[str, Any]) -> tuple[Any, Figures]:
    """Their constants: r over the whole box, fitted in epsilon; the score is noisy and held out, as theirs is not."""
    from benchmarks.tune.choices import split_task

    task = split_task(train, budget, threshold=1.0)
    box = tune.SearchBox((1e-2, 10.0**1.5), (5, 150))
    stages = settings.get("epsilons", [0.1, 0.2])
    mus = [gdp_mu(Budget(each, DELTA)) for each in stages]
    tuned = tune.linear_scaling(task, budget, box=box, mus=mus, degree=settings.get("degree", 1), split="both")
    return tuned.model, {**_said(tuned), "final": tuned.epsilon}


def train_at(train: Features, budget: Budget, settings: dict[str, Any]) -> tuple[Any, Figures]:
    from benchmarks.tune.choices import scaled, split_task

    searched = Budget(settings["searched"], DELTA)
    task = split_task(train, searched)
    law = scaled(task, searched).law
    assert law is not None
    tuned = tune.train_at(task, law, budget, box=tune.head_options(task, budget)["box"])
    spent = math.hypot(gdp_mu(searched), gdp_mu(budget))
    return tuned.model, {**_said(tuned), "mu": spent}


def _autopilot(train: Features, budget: Budget, settings: dict[str, Any]) -> tuple[Any, Figures]:
    result = tune.autopilot(train, budget=budget, tuning_share=settings.get("tuning_share", TUNING_SHARE))
    return result.model, _said(result.tuned)


def _data_free(train: Features, budget: Budget, settings: dict[str, Any]) -> tuple[Any, Figures]:
    from benchmarks.tune.choices import data_free

    del settings
    tuned = data_free(train, budget)
    return tuned.model, _said(tuned)


def _random(train: Features, budget: Budget, settings: dict[str, Any]) -> tuple[Any, Figures]:
    from benchmarks.tune.choices import space_of, split_task

    del settings
    task = split_task(train, budget)
    tuned = tune.random_search(task, space_of(task, budget), budget, trials=1)
    return tuned.model, _said(tuned)


def _said(tuned: Any) -> dict[str, Any]:
    kept = (gdp_mu(Budget(tuned.epsilon, DELTA)) / gdp_mu(tuned.budget)) ** 2 if tuned.trials else 1.0
    return {
        "r": tuned.candidate.r, "lr": tuned.candidate.lr, "steps": tuned.candidate.steps,
        "trials": len(tuned.trials), "tuning": max(0.0, 1 - kept), "epsilon": tuned.spent.epsilon,
    }  # fmt: skip


_WAYS = {
    "recipe": recipe, "linear_scaling": scaling, "paper": paper, "train_at": train_at, "autopilot": _autopilot,
    "data-free": _data_free, "random": _random,
}  # fmt: skip
