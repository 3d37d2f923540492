"""Trials on one Poisson sample of the records, whose step size is then carried over to all of them.

Reference: Koskela and Kulkarni, "Practical Differentially Private Hyperparameter Tuning with Subsampling", NeurIPS
2023. Panda et al. 2024 report that it did not carry over on ImageNet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, Protocol

from dpilot import _validate
from dpilot.errors import InvalidInput
from dpilot.privacy import accountant
from dpilot.privacy.budget import Budget
from dpilot.privacy.events import Composed, Gaussian, PoissonSampled
from dpilot.privacy.gaussian import gdp_mu
from dpilot.privacy.ledger import Ledger, Stage
from dpilot.privacy.receipt import divide, step_noise_multiplier
from dpilot.tune.candidate import Candidate
from dpilot.tune.record import TrialRecord, Tuned
from dpilot.tune.rounds import FINAL, commit_stages, score_models, train_one
from dpilot.tune.scoring import TrialScore
from dpilot.tune.task import HELD_OUT, TRAIN, Outlay, Task

__all__ = ["subset_search"]

_TRIALS: Final = "trials on a sample"


class SubsampleTask(Task, Protocol):
    """A full-batch task that can be had on a Poisson sample of its training records."""

    def subsample(self, rate: float) -> Task: ...


def subset_search(
    task: SubsampleTask,
    grid: Sequence[Candidate],
    budget: Budget,
    *,
    rate: float = 0.1,
    share: float = 0.1,
    objective: str = "accuracy",
    ledger: Ledger | str | Path | None = None,
) -> Tuned:
    """Try ``grid`` on a sample that keeps each record with chance ``rate``, then train on all with lr / rate.

    The final run takes 1 - ``share`` of mu^2, and the trials as much as the sample lets fit beside it.

    ::

        all trials see one sample, so together they are one Gaussian on it: PoissonSampled(rate, Gaussian(s)),
        k trials of s sqrt(k) each, the steps of a trial of T steps s sqrt(k T) each

    Guarantee:
        Sample and noise multipliers are fixed before a record is read; the sample is secret, and its size is never
        used: sums are divided by rate * size.
    """
    if task.sample_rate != 1:
        raise InvalidInput(
            f"sample_rate is {task.sample_rate}: expected a full-batch task, as the sample is one batch."
        )
    count, whole = _validate.count(trials=len(grid)), gdp_mu(budget)
    final = 1 / (whole * math.sqrt(1 - _validate.open_unit(share=share)))
    together = _together(budget, final, rate, share)
    score_multiplier = math.sqrt(count) * (1 + 1e-12) / whole
    each = Outlay(step_noise_multiplier(together, count))
    scores_of = [f"score {j + 1}" for j in range(count)]
    stages = [
        Stage(_TRIALS, PoissonSampled(rate, Gaussian(together)), TRAIN, task.split),
        *(Stage(name, Gaussian(score_multiplier), HELD_OUT, task.split) for name in scores_of),
        Stage(FINAL, Gaussian(final), TRAIN, task.split),
    ]
    task.cells(objective)
    with commit_stages(task, stages, budget, ledger) as payment:
        with payment.committed.stage(_TRIALS) as receipt:
            pieces = divide(receipt, together, count, sample_rate=rate)
            models = task.subsample(rate).train([each.trial(candidate, pieces) for candidate in grid])
        scores = score_models(task, payment.committed, scores_of, models, objective, score_multiplier)
        best = grid[max(range(count), key=lambda j: scores[j].value)]
        carried = Candidate(best.lr / rate, best.steps)
        return payment.outcome(
            "subset_search",
            train_one(task, payment.committed, FINAL, Outlay(final), carried),
            carried,
            accountant.epsilon(Gaussian(final), budget.delta),
            decisions=(
                f"step size {best.lr:.4g}: best of {count} on a sample of {rate:.0%}; {carried.lr:.4g} on all.",
            ),
            trials=_records(grid, scores, accountant.epsilon(PoissonSampled(rate, each.event), budget.delta)),
        )


def _records(grid: Sequence[Candidate], scores: Sequence[TrialScore], epsilon: float) -> tuple[TrialRecord, ...]:
    return tuple(TrialRecord(0, candidate, epsilon, each) for candidate, each in zip(grid, scores, strict=True))


@lru_cache
def _together(budget: Budget, final: float, rate: float, share: float) -> float:
    """The least noise multiplier of all trials together that fits beside the final run, to one part in a hundred."""
    rate, high = _validate.open_unit(rate=rate), 1 / (gdp_mu(budget) * math.sqrt(share)) * (1 + 1e-9)

    def fits(sigma: float) -> bool:
        event = Composed([PoissonSampled(rate, Gaussian(sigma)), Gaussian(final)])
        return accountant.epsilon(event, budget.delta) <= budget.epsilon

    while fits(high / 1.5):  # the first one fits without any sampling; far below the answer grids grow without bound
        high /= 1.5
    low = high / 1.5
    while high > 1.01 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
