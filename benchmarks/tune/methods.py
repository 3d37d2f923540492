"""Every way of tuning at the same total epsilon, on the same features; test accuracy of what each one hands out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from benchmarks.transfer.fitting import accuracy, plain
from benchmarks.tune import data
from benchmarks.tune.choices import DEFAULTS, Defaults, center_bought, data_free, scaled, split_task
from dpilot import Budget, tune
from dpilot.privacy import gdp_mu
from dpilot.privacy.receipt import Receipt
from dpilot.transfer.features import Features
from dpilot.tune.outlays import whole_outlay

GRID = tuple(2.0**place for place in range(-6, 1))
"""r / (mu n) of the oracle's and the grid's candidates."""


Way = Callable[[Features, Budget], Any]


def space_of(box: tune.Box) -> tune.Space:
    """Three decades of step sizes, as Panda et al. search, up to the largest that linear scaling may use; all steps of
    its box; all ratios alike."""
    return tune.Space(tune.LogUniform(box.lr[1] / 1000, box.lr[1]), tune.LogUniform(*box.steps))


def ways(chosen: Defaults) -> dict[str, Way]:
    """Name -> (training records, budget) -> weights."""

    half = replace(chosen, threshold=0.5)

    def split(run: Callable[[tune.ProbeTask, Budget], tune.Tuned], told: Defaults = chosen) -> Way:
        return lambda features, budget: run(split_task(features, told), budget).model

    def space(task: tune.ProbeTask, budget: Budget) -> tune.Space:
        return space_of(chosen.box(chosen.r(gdp_mu(budget), task.size)))

    def grid(task: tune.ProbeTask, budget: Budget) -> list[tune.Candidate]:
        r = chosen.r(gdp_mu(budget), task.size)
        return [chosen.candidate(r * 4.0**place) for place in range(-2, 3)]

    return {
        "linear_scaling": split(lambda task, budget: scaled(task, budget, chosen)),
        "autopilot": lambda features, budget: tune.autopilot(features, budget=budget).model,
        "data-free default": lambda features, budget: data_free(features, budget, len(features), chosen),
        "linear_scaling, threshold 0.5": split(lambda task, budget: scaled(task, budget, half), half),
        "data-free, threshold 0.5": lambda features, budget: data_free(features, budget, len(features), half),
        "private_selection": split(lambda task, budget: tune.private_selection(task, space(task, budget), budget)),
        "budget_split_grid": split(lambda task, budget: tune.budget_split_grid(task, grid(task, budget), budget)),
        "random_search, 5 runs": split(lambda task, budget: tune.random_search(task, space(task, budget), budget)),
        "random_search, 1 run": split(
            lambda task, budget: tune.random_search(task, space(task, budget), budget, trials=1)
        ),
    }


def oracle(train: Features, test: Features, budget: Budget, chosen: Defaults, repeats: int) -> dict[str, Any]:
    """The best r of a grid by mean test accuracy of ``repeats`` runs, whole budget, all records; not private."""
    m, outlay = gdp_mu(budget) * len(train), whole_outlay(budget)
    candidates = [chosen.candidate(ratio * m) for ratio in GRID]
    task = tune.ProbeTask(train, train.take([]), len(train), 1.0)
    rows: list[list[float]] = []
    for _ in range(repeats):
        models = task.train([outlay.trial(each, Receipt(outlay.event)) for each in candidates])
        rows.append([accuracy(test, weights) for weights in models])
    columns = list(zip(*rows, strict=True))
    best = max(range(len(columns)), key=lambda j: sum(columns[j]))
    return {
        "accuracies": columns[best],
        "candidate": candidates[best],
        "by ratio": dict(zip(GRID, columns, strict=True)),
    }


FEW = (
    "linear_scaling",
    "autopilot",
    "data-free default",
    "linear_scaling, threshold 0.5",
    "data-free, threshold 0.5",
)


def measure(
    goal: data.Goal,
    train: Features,
    test: Features,
    repeats: int,
    *,
    wanted: str = "",
    chosen: Defaults = DEFAULTS,
) -> dict[str, Any]:
    """Test accuracies of every way, ``repeats`` runs each; the center, where one is bought, is inside the budget.

    ``wanted``: only the ways whose name contains it, without the yardsticks that are not private.
    """
    found: dict[str, Any] = {"n": len(train), "width": train.width, "ways": {}}
    for name, run in ways(chosen).items():
        if wanted not in name or (goal.few and name not in FEW):
            continue
        started, each = time.perf_counter(), []
        for _ in range(repeats):
            each.append(_once(goal, train, test, run, chosen))
            print(goal.name, name, f"{each[-1]:.4f}", flush=True)
        found["ways"][name] = each
        found.setdefault("seconds", {})[name] = (time.perf_counter() - started) / repeats
    if wanted:
        return found
    found["non-private"] = plain(train, test)
    moved, (shown,), left = _ready(goal, train, test, chosen)
    best = oracle(moved, shown, left, chosen, repeats)
    found["ways"]["grid_oracle"] = list(best["accuracies"])
    found["oracle"] = {"lr": best["candidate"].lr, "steps": best["candidate"].steps, "by ratio": best["by ratio"]}
    print(goal.name, "oracle", best["candidate"], [f"{value:.4f}" for value in best["accuracies"]], flush=True)
    return found


def _ready(goal: data.Goal, train: Features, test: Features, chosen: Defaults) -> Any:
    if not goal.centres:
        return train, [test], goal.budget
    return center_bought(train, [test], goal.budget, chosen.center)


def _once(goal: data.Goal, train: Features, test: Features, run: Any, chosen: Defaults) -> float:
    moved, (shown,), left = _ready(goal, train, test, chosen)
    weights = run(moved, left)
    return accuracy(shown, torch.as_tensor(weights).to(shown.values.device))


def reduction(ours: float, random: float, oracle: float) -> float:
    """Relative error-rate reduction of Panda et al. 2024: (ours - random) / (oracle - random), of accuracies."""
    return (ours - random) / (oracle - random) if not math.isclose(oracle, random) else math.nan
