"""Every public entry that spends, as one call each: what holds for one holds for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpilot import Budget, Plan, PrivateStep, Trainer, poisson_loader
from dpilot.data.schema import Schema
from dpilot.data.splits import Split
from dpilot.fit.table import fit_table
from dpilot.linear import AutoRegressor, LinearRegression, LogisticRegression, PrivateStandardScaler
from dpilot.transfer import Features, fit_probe
from dpilot.tune import (
    Always,
    AutoClassifier,
    Candidate,
    LogUniform,
    ModuleTask,
    ProbeTask,
    ScalingLaw,
    SearchBox,
    Space,
    autopilot,
    budget_split_grid,
    linear_scaling,
    private_selection,
    random_search,
    train_at,
)
from tests.fit.helpers import SCHEMA, frame

SIZE = 200
LOSS = nn.CrossEntropyLoss(reduction="none")
BOX = SearchBox((0.1, 10.0), (2, 2))
SPACE = Space(LogUniform(0.1, 1.0), Always(2))
EPSILON = 5.0


def values(size: int = SIZE) -> tuple[Any, Any]:
    made = np.random.default_rng(0).normal(size=(size, 3)).astype(np.float32)
    return made, (made[:, 0] > 0).astype(np.int64)


def dataset(size: int = SIZE) -> TensorDataset:
    return TensorDataset(*map(torch.from_numpy, values(size)))


def features(size: int = SIZE) -> Features:
    return Features.of(*values(size), classes=2).unit()


def split() -> Split:
    return Split.draw({"train": 0.8, "held-out": 0.2})


def plan(delta: float, allow: bool) -> Plan:
    budget = Budget(EPSILON, delta, allow_large_delta=allow)
    return Plan.calibrate(budget, size=SIZE, batch_size=SIZE, steps=2, clipping="constant")


def trainer(ledger: Any, delta: float, allow: bool, size: int = SIZE) -> Any:
    return Trainer(nn.Linear(3, 2), LOSS, plan(delta, allow), ledger=ledger, chunk_size=16).fit(dataset(size))


def private_step(ledger: Any, delta: float, allow: bool, size: int = SIZE) -> Any:
    chosen, model = plan(delta, allow), nn.Linear(3, 2)
    loader = poisson_loader(dataset(size), chosen)
    step = PrivateStep(model, LOSS, torch.optim.SGD(model.parameters(), lr=0.1), chosen, ledger=ledger)
    for batch in loader:
        step(batch)
    return step


def estimator(make: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    def fit(ledger: Any, delta: float, allow: bool, size: int = SIZE) -> Any:
        declared = {"size": SIZE, "ledger": ledger, "allow_large_delta": allow, **options}
        return make(EPSILON, delta, **declared).fit(*values(size))

    return fit


def table(model: str, epochs: float) -> Callable[..., Any]:
    def fit(ledger: Any, delta: float, allow: bool, size: int = SIZE) -> Any:
        total = {"epsilon": EPSILON, "delta": delta, "allow_large_delta": allow}
        return fit_table(frame(size), SCHEMA, **total, model=model, epochs=epochs, size=SIZE, ledger=ledger)

    return fit


def texts(ledger: Any, delta: float, allow: bool, size: int = SIZE) -> Any:
    made, labels = values(size)
    table = {"note": [f"word{int(row[0] > 0)} and {int(row[1])}" for row in made], "y": labels}
    declared = {"note": {"type": "text", "features": 16}, "y": {"type": "boolean", "role": "target"}}
    total = {"epsilon": EPSILON, "delta": delta, "allow_large_delta": allow}
    return fit_table(table, Schema.from_dict({"columns": declared}), **total, epochs=8, size=SIZE, ledger=ledger)


def probe(ledger: Any, delta: float, allow: bool, size: int = SIZE) -> Any:
    budget = Budget(EPSILON, delta, allow_large_delta=allow)
    return fit_probe(features(size), budget, lr=1.0, steps=2, size=SIZE, ledger=ledger)


def tuner(run: Callable[..., Any]) -> Callable[..., Any]:
    def fit(ledger: Any, delta: float, allow: bool, size: int = SIZE) -> Any:
        task = ProbeTask.of(features(size), split(), size=SIZE)
        return run(task, Budget(EPSILON, delta, allow_large_delta=allow), ledger)

    return fit


def module_search(ledger: Any, delta: float, allow: bool, size: int = SIZE) -> Any:
    task = ModuleTask.of(lambda: nn.Linear(3, 2), LOSS, dataset(size), split(), size=SIZE, classes=2)
    budget = Budget(EPSILON, delta, allow_large_delta=allow)
    return random_search(task, SPACE, budget, trials=2, ledger=ledger)


def pilot(what: Callable[[int], tuple[Any, Any]], **options: Any) -> Callable[..., Any]:
    def fit(ledger: Any, delta: float, allow: bool, size: int = SIZE) -> Any:
        budget = Budget(EPSILON, delta, allow_large_delta=allow)
        return autopilot(*what(size), budget, size=SIZE, ledger=ledger, **options)

    return fit


LAW = ScalingLaw(points=(), low=0.1, high=10.0, fallback=1.0)
GRID = [Candidate(0.5, 2), Candidate(1.0, 2)]

ENTRIES: dict[str, Callable[..., Any]] = {
    "Trainer": trainer,
    "PrivateStep": private_step,
    "LinearRegression": estimator(LinearRegression),
    "LogisticRegression": estimator(LogisticRegression, classes=[0, 1]),
    "PrivateStandardScaler": estimator(PrivateStandardScaler),
    "AutoRegressor": estimator(AutoRegressor),
    "AutoClassifier": estimator(AutoClassifier, classes=[0, 1], epochs=8),
    "AutoClassifier of unit rows": estimator(AutoClassifier, classes=[0, 1], rows="unit", epochs=8),
    "fit_table": table("auto", 2),
    "fit_table of a network": table("logistic", 0.1),
    "fit_table of texts": texts,
    "fit_probe": probe,
    "linear_scaling": tuner(lambda task, budget, ledger: linear_scaling(task, budget, box=BOX, ledger=ledger)),
    "train_at": tuner(lambda task, budget, ledger: train_at(task, LAW, budget, box=BOX, ledger=ledger)),
    "private_selection": tuner(lambda task, budget, ledger: private_selection(task, SPACE, budget, ledger=ledger)),
    "budget_split_grid": tuner(lambda task, budget, ledger: budget_split_grid(task, GRID, budget, ledger=ledger)),
    "random_search": tuner(lambda task, budget, ledger: random_search(task, SPACE, budget, trials=2, ledger=ledger)),
    "random_search of modules": module_search,
    "autopilot of features": pilot(lambda size: (features(size), None)),
    "autopilot of a module": pilot(lambda size: (lambda: nn.Linear(3, 2), dataset(size)), classes=2, epochs=1),
}
