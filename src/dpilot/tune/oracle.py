"""The oracle: every candidate at the whole budget, the best by its exact score. A yardstick; it is not private."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dpilot.errors import InvalidInput
from dpilot.metrics.objective import objective as value_of
from dpilot.privacy import accountant
from dpilot.privacy.budget import Budget, Cost
from dpilot.privacy.receipt import Receipt
from dpilot.tune.candidate import Candidate
from dpilot.tune.outlays import whole_outlay
from dpilot.tune.record import TrialRecord, Tuned
from dpilot.tune.scoring import TrialScore
from dpilot.tune.task import Task

__all__ = ["ORACLE", "grid_oracle"]

ORACLE: Final = "not private: the oracle's tuning is not counted"


def grid_oracle(
    task: Task, grid: Sequence[Candidate], budget: Budget, *, objective: str = "accuracy", unsafe: bool = False
) -> Tuned:
    """What a run of ``budget`` could reach if tuning cost nothing: for comparisons on data that may be seen.

    Guarantee:
        None. It must be asked for with ``unsafe=True``, writes to no ledger, and stamps its record.
    """
    if not unsafe:
        raise InvalidInput(
            "the oracle reads exact scores and trains every candidate at the whole budget: expected unsafe=True from "
            "who compares methods on data that may be seen. Use linear_scaling or private_selection."
        )
    runs = [whole_outlay(budget, task.sample_rate, each.steps) for each in grid]
    pairs = list(zip(grid, runs, strict=True))
    models = task.train([outlay.trial(candidate, Receipt(outlay.event)) for candidate, outlay in pairs])
    scores = [TrialScore(value_of(objective, task.exact_table(model, objective)), 0.0) for model in models]
    place = max(range(len(scores)), key=lambda j: scores[j].value)
    epsilon = accountant.epsilon(runs[place].event, budget.delta)
    return Tuned(
        method="grid_oracle",
        model=models[place],
        candidate=grid[place],
        epsilon=epsilon,
        budget=budget,
        spent=Cost(epsilon, budget.delta),
        entries=(),
        decisions=(f"step size {grid[place].lr:.4g}, {grid[place].steps} steps: best exact score of {len(grid)}.",),
        stamps=(ORACLE, task.stamp),
        trials=tuple(TrialRecord(0, c, epsilon, s) for c, s in zip(grid, scores, strict=True)),
        score=scores[place],
        unprotected=("everything: the tuning is not counted",),
    )
