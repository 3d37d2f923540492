"""Few records and a small budget: nothing is spent on trials, and nothing is lost against the data-free default."""

from __future__ import annotations

from typing import Any

from benchmarks.transfer.fitting import accuracy
from benchmarks.tune.choices import data_free, scaled, split_task
from dpilot import Budget
from dpilot.transfer.features import Features
from dpilot.tune import autopilot

RECORDS, EPSILON = 500, 0.1


def measure(train: Features, test: Features, repeats: int) -> dict[str, Any]:
    """Accuracies of each on the same 500 records, how many trials were made, and what the tuner says."""
    budget, few = Budget(EPSILON, 1e-5), train.take(range(RECORDS))
    free, ours, fitted, told, trials = [], [], [], "", 0
    for _ in range(repeats):
        free.append(accuracy(test, data_free(few, budget).model))
        result = autopilot(few, budget=budget)
        fitted.append(accuracy(test, result.model))
        tuned = scaled(split_task(few, budget), budget)
        ours.append(accuracy(test, tuned.model))
        told, trials = tuned.decisions[0], trials + len(tuned.trials) + len(result.tuned.trials)
    return {"data-free": free, "linear_scaling": ours, "autopilot": fitted, "trials": trials, "said": told}
