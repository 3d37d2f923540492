"""Trials that compose: a grid on part of the budget and one full run, a few runs that share the whole of it; and the
oracle, every candidate at the whole budget by its exact score: a yardstick, which is not private."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from dpilot import _validate
from dpilot.errors import InvalidInput
from dpilot.keys import Chain, fresh_key
from dpilot.metrics.objective import objective as value_of
from dpilot.privacy import accountant
from dpilot.privacy.budget import Budget, Cost
from dpilot.privacy.gaussian import gdp_mu
from dpilot.privacy.ledger import Ledger, Stage
from dpilot.privacy.receipt import Receipt
from dpilot.records import StepRecord
from dpilot.tune.candidate import Candidate
from dpilot.tune.outlays import equal_outlay, stage_outlays, whole_outlay
from dpilot.tune.record import TrialRecord, Tuned
from dpilot.tune.rounds import FINAL, Result, Round, commit_stages, train_one
from dpilot.tune.scoring import TrialScore, rankable
from dpilot.tune.space import Space
from dpilot.tune.task import TRAIN, Task

__all__ = ["budget_split_grid", "grid_oracle", "random_search"]


def budget_split_grid(
    task: Task,
    grid: Sequence[Candidate],
    budget: Budget,
    *,
    share: float = 1 / 3,
    objective: str = "accuracy",
    ledger: Ledger | str | Path | None = None,
) -> Tuned:
    """Every candidate of ``grid`` on ``share`` of mu^2 in all, noisy scores, then the best with the rest.

    As published, scores had noise for a sensitivity that no bound gives, and the trials' runs were not charged. Here
    both are paid: trials and final run in the part "train", scores in "held-out".

    Edge cases:
        scores that noise does not let one rank    the best noisy one is taken all the same, and a sentence says so

    Reference:
        Provan, section 4.4 (a third of the budget on five candidates).
    """
    steps = _steps(task, [each.steps for each in grid])
    mu = gdp_mu(budget) * math.sqrt(_validate.open_unit(share=share) / max(len(grid), 1))
    (trial,), final = stage_outlays(budget, [mu], len(grid), sample_rate=task.sample_rate, steps=steps)
    # k noisy tables at mu / sqrt(k) each compose to mu: k (mu / sqrt(k))^2 = mu^2, on the held-out part alone
    # (test_a_grid_takes_its_share_and_the_best_gets_the_rest).
    trials = Round("grid", trial, len(grid), math.sqrt(len(grid)) / gdp_mu(budget), objective)
    task.cells(objective)
    stages = [*trials.stages(task.split), Stage(FINAL, final.event, TRAIN, task.split)]
    with commit_stages(task, stages, budget, ledger) as payment:
        results = trials.run(task, payment.committed, grid)
        best, epsilon = _best(results), accountant.epsilon(final.event, budget.delta)
        kept: list[StepRecord] = []
        model = train_one(task, payment.committed, FINAL, final, best.candidate, kept.extend)
        return payment.outcome(
            "budget_split_grid",
            model,
            best.candidate,
            epsilon,
            decisions=(_story(results, best), f"the final run has epsilon {epsilon:.4g}."),
            trials=_records(results, accountant.epsilon(trial.event, budget.delta)),
            released=tuple(kept),
        )


def random_search(
    task: Task,
    space: Space,
    budget: Budget,
    *,
    trials: int = 5,
    objective: str = "accuracy",
    ledger: Ledger | str | Path | None = None,
) -> Tuned:
    """``trials`` runs on candidates drawn from ``space``, each with an equal part of the budget; the best is kept.

    All runs and scores are released, so the best needs no training again. The candidates are no record's doing.
    """
    count = _validate.count(trials=trials)
    drawn = Chain(fresh_key("candidates")).generator("candidates")
    candidates = [space.draw(drawn) for _ in range(count)]
    steps = space.step_counts if task.sample_rate < 1 else (0,)
    if len(steps) != 1:
        raise InvalidInput(f"steps are {steps} where batches are sampled: expected one number, Always(steps).")
    outlay = equal_outlay(budget, count, task.sample_rate, steps[0] or None)
    runs = Round("random", outlay, count, math.sqrt(count) * (1 + 1e-12) / gdp_mu(budget), objective)
    task.cells(objective)
    with commit_stages(task, runs.stages(task.split), budget, ledger) as payment:
        results = runs.run(task, payment.committed, candidates)
        best, epsilon = _best(results), accountant.epsilon(outlay.event, budget.delta)
        return payment.outcome(
            "random_search",
            best.model,
            best.candidate,
            epsilon,
            decisions=(_story(results, best), f"each run has epsilon {epsilon:.4g}."),
            trials=_records(results, epsilon),
            score=best.score,
        )


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
        stamps=("not private: the oracle's tuning is not counted", task.stamp),
        trials=tuple(TrialRecord(0, c, epsilon, s) for c, s in zip(grid, scores, strict=True)),
        score=scores[place],
        unprotected=("everything: the tuning is not counted",),
    )


def _steps(task: Task, counts: Sequence[int]) -> int | None:
    """The one number of steps that sampled candidates share; any number goes with full batches."""
    if not counts:
        raise InvalidInput("grid is empty: expected at least one candidate.")
    if task.sample_rate < 1 and len(set(counts)) > 1:
        raise InvalidInput(f"the grid has steps {sorted(set(counts))}: expected one number where batches are sampled.")
    return counts[0] if task.sample_rate < 1 else None


def _best(results: Sequence[Result]) -> Result:
    return max(results, key=lambda result: result.score.value)


def _records(results: Sequence[Result], epsilon: float) -> tuple[TrialRecord, ...]:
    return tuple(TrialRecord(0, each.candidate, epsilon, each.score) for each in results)


def _story(results: Sequence[Result], best: Result) -> str:
    doubt = "" if rankable([each.score for each in results]) else ", though noise alone would explain the differences"
    return (
        f"step size {best.candidate.lr:.4g}, {best.candidate.steps} steps: best noisy score of {len(results)} "
        f"({best.score.value:.3g}, noise {best.score.noise:.2g}){doubt}."
    )
