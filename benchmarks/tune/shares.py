"""Accuracy against the share of mu^2 that tuning takes, from the data-free default (0) to one half."""

from __future__ import annotations

from typing import Any

from benchmarks.transfer.fitting import accuracy
from benchmarks.tune import data
from benchmarks.tune.choices import data_free, scaled, split_task
from dpilot.transfer.features import Features

SHARES = (0.0, 0.01, 0.025, 0.06, 0.12, 0.25, 0.5)


def measure(goal: data.Goal, train: Features, test: Features, repeats: int) -> dict[str, list[float]]:
    """Share -> test accuracies; a fifth of a share goes to the first stage, the rest to the second."""
    found: dict[str, list[float]] = {}
    for share in SHARES:
        found[f"{share:g}"] = [accuracy(test, _weights(goal, train, share)) for _ in range(repeats)]
        print(goal.name, f"share {share:g}", [f"{value:.4f}" for value in found[f"{share:g}"]], flush=True)
    return found


def _weights(goal: data.Goal, train: Features, share: float) -> Any:
    if share == 0:
        return data_free(train, goal.budget).model
    return scaled(split_task(train, goal.budget), goal.budget, shares=(share / 5, 4 * share / 5)).model
