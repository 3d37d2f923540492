"""Which clipping threshold on unit rows: the same walk C r, at every C, on data that no goal uses."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.transfer.fitting import accuracy
from benchmarks.tune import other
from benchmarks.tune.choices import whole_task
from dpilot import Budget
from dpilot.privacy import gdp_mu
from dpilot.privacy.receipt import Receipt
from dpilot.transfer.features import Features
from dpilot.tune import Candidate
from dpilot.tune.outlays import whole_outlay

TASKS = ("names, hashed letters", "Dutch census, one-hot", "SMS spam, MiniLM", "mixture of 10")
EPSILONS = (0.3, 1.0)
THRESHOLDS = (1.0, 0.5, 0.25)
RATIOS = tuple(2.0**place for place in range(-5, -1))
STEPS = 100


def measure(device: str, repeats: int, names: tuple[str, ...] = TASKS, steps: int = STEPS) -> dict[str, Any]:
    """Task and epsilon -> threshold -> C r / (mu n) -> test accuracies of ``repeats`` runs."""
    found: dict[str, Any] = {}
    for name in names:
        train, test = other.load(name, device)
        for epsilon in EPSILONS:
            key = f"{name}, epsilon {epsilon:g}"
            found[key] = {
                f"{threshold:g}": by_ratio(train, test, Budget(epsilon, 1e-5), threshold, repeats, steps)
                for threshold in THRESHOLDS
            }
            print(key, {each: f"{best(values):.2%}" for each, values in found[key].items()}, flush=True)
    return found


def best(by_ratio: dict[str, list[float]]) -> float:
    """The mean of the best walk."""
    return max(statistics.mean(values) for values in by_ratio.values())


def by_ratio(
    train: Features, test: Features, budget: Budget, threshold: float, repeats: int, steps: int
) -> dict[str, list[float]]:
    """C r / (mu n) -> test accuracies of ``repeats`` runs with the whole budget on all records."""
    task, outlay = whole_task(train, threshold=threshold), whole_outlay(budget)
    whole = gdp_mu(budget) * len(train) / threshold
    trials = [
        outlay.trial(Candidate(ratio * whole / steps, steps), Receipt(outlay.event))
        for ratio in RATIOS
        for _ in range(repeats)
    ]
    reached = [accuracy(test, weights) for weights in task.train(trials)]
    return {f"{ratio:g}": reached[j * repeats : (j + 1) * repeats] for j, ratio in enumerate(RATIOS)}
