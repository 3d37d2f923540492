"""Every way of tuning at the same total epsilon, on the same features; test accuracy of what each one hands out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.transfer.fitting import accuracy, plain
from benchmarks.tune import data
from benchmarks.tune.choices import center_bought, data_free, scaled, space_of, split_task, walked, whole_task
from dpilot import Budget, tune
from dpilot.privacy import gdp_mu
from dpilot.privacy.receipt import Receipt
from dpilot.transfer.features import Features
from dpilot.tune.outlays import whole_outlay

GRID = tuple(2.0**place for place in range(-6, 1))
"""C r / (mu n) of the oracle's candidates, C being the clipping threshold."""

Way = Callable[[Features, Budget], Any]


def _split(run: Callable[[tune.ProbeTask, Budget], tune.Tuned], **options: Any) -> Way:
    return lambda features, budget: run(split_task(features, budget, **options), budget)


def _grid(task: tune.ProbeTask, budget: Budget) -> list[tune.Candidate]:
    told = tune.head_options(task, budget)
    return [walked(told["fallback"] * 4.0**place, told["box"]) for place in range(-2, 3)]


WAYS: dict[str, Way] = {
    "linear_scaling": _split(scaled),
    "autopilot": lambda features, budget: tune.autopilot(features, budget=budget),
    "data-free default": data_free,
    "linear_scaling, threshold 1": _split(scaled, threshold=1.0),
    "data-free, threshold 1": lambda features, budget: data_free(features, budget, threshold=1.0),
    "private_selection": _split(lambda task, budget: tune.private_selection(task, space_of(task, budget), budget)),
    "budget_split_grid": _split(lambda task, budget: tune.budget_split_grid(task, _grid(task, budget), budget)),
    "random_search, 5 runs": _split(lambda task, budget: tune.random_search(task, space_of(task, budget), budget)),
    "random_search, 1 run": _split(
        lambda task, budget: tune.random_search(task, space_of(task, budget), budget, trials=1)
    ),
}
"""Name -> (training records, budget) -> what has a ``model`` and ``decisions``."""

FEW = tuple(WAYS)[:5]
MANY = {"random_search, 1 run": 5}
"""Times as many runs: one draw from three decades says little."""


def oracle(train: Features, test: Features, budget: Budget, repeats: int) -> dict[str, Any]:
    """The best r of a grid by mean test accuracy of ``repeats`` runs, whole budget, all records; not private."""
    task, outlay = whole_task(train), whole_outlay(budget)
    walk, box = gdp_mu(budget) * len(train) / task.threshold, tune.head_options(task, budget)["box"]
    candidates = [walked(ratio * walk, box) for ratio in GRID]
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


def measure(goal: data.Goal, train: Features, test: Features, repeats: int, *, wanted: str = "") -> dict[str, Any]:
    """Test accuracies of every way, ``repeats`` runs each; the center, where one is bought, is inside the budget.

    ``wanted``: only the ways whose name contains it, without the yardsticks that are not private.
    """
    found: dict[str, Any] = {"n": len(train), "width": train.width, "ways": {}, "seconds": {}, "said": {}}
    for name, run in WAYS.items():
        if wanted not in name or (goal.few and name not in FEW):
            continue
        started, each, count = time.perf_counter(), [], repeats * MANY.get(name, 1)
        for _ in range(count):
            reached, found["said"][name] = _once(goal, train, test, run)
            each.append(reached)
            print(goal.name, name, f"{reached:.4f}", flush=True)
        found["ways"][name] = each
        found["seconds"][name] = (time.perf_counter() - started) / count
        print(*found["said"][name], flush=True)
    if wanted:
        return found
    found["non-private"] = plain(train, test)
    moved, (shown,), left = _ready(goal, train, test)
    best = oracle(moved, shown, left, repeats)
    found["ways"]["grid_oracle"] = list(best["accuracies"])
    found["oracle"] = {"lr": best["candidate"].lr, "steps": best["candidate"].steps, "by ratio": best["by ratio"]}
    print(goal.name, "oracle", best["candidate"], best["by ratio"], "non-private", found["non-private"], flush=True)
    return found


def _ready(goal: data.Goal, train: Features, test: Features) -> Any:
    return center_bought(train, [test], goal.budget) if goal.centres else (train, [test], goal.budget)


def _once(goal: data.Goal, train: Features, test: Features, run: Way) -> tuple[float, list[str]]:
    moved, (shown,), left = _ready(goal, train, test)
    tuned = run(moved, left)
    return accuracy(shown, torch.as_tensor(tuned.model).to(shown.values.device)), [
        str(each) for each in tuned.decisions
    ]


def reduction(ours: float, random: float, oracle: float) -> float:
    """Relative error-rate reduction of Panda et al. 2024: (ours - random) / (oracle - random), of accuracies."""
    return (ours - random) / (oracle - random) if not math.isclose(oracle, random) else math.nan
