"""Private selection: a secret, random number of whole runs, of which the best by its noisy score is released.

Reference: Papernot and Steinke, "Hyperparameter Tuning with Renyi Differential Privacy", ICLR 2022; the bounds used
are those of docs/proofs/selection.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from dpilot.errors import InvalidInput
from dpilot.keys import Chain, fresh_key
from dpilot.metrics.objective import check_objective
from dpilot.privacy import accountant
from dpilot.privacy.budget import Budget
from dpilot.privacy.events import Gaussian, OneOf, RepeatAndSelect
from dpilot.privacy.ledger import Committed, Ledger, Stage
from dpilot.privacy.receipt import TrialReceipts
from dpilot.privacy.trials import law_of
from dpilot.records import StepRecord
from dpilot.tune.candidate import Candidate
from dpilot.tune.outlays import least_factor, whole_outlay
from dpilot.tune.record import Tuned
from dpilot.tune.rounds import Result, begin_stages, commit_stages
from dpilot.tune.scoring import score
from dpilot.tune.space import Space
from dpilot.tune.task import HELD_OUT, TRAIN, Outlay, Task

__all__ = ["SelectionPlan", "plan_selection", "private_selection", "select"]

_TRIALS: Final = "private selection: trials"
_SCORES: Final = "private selection: scores"


@dataclass(frozen=True, slots=True)
class SelectionPlan:
    """``outlays``: how a trial is paid, by its number of steps (one for all, under None, if full batch).

    ``trials`` and ``scores`` are the events of the two parts, each a whole selection.
    """

    space: Space
    outlays: dict[int | None, Outlay]
    trials: RepeatAndSelect
    scores: RepeatAndSelect
    score_multiplier: float
    objective: str

    def stages(self, split: str | None) -> list[Stage]:
        """What it costs the records of each part, for ``ledger.commit``."""
        return [Stage(_TRIALS, self.trials, TRAIN, split), Stage(_SCORES, self.scores, HELD_OUT, split)]

    def outlay(self, candidate: Candidate) -> Outlay:
        return self.outlays[None] if None in self.outlays else self.outlays[candidate.steps]


def private_selection(
    task: Task,
    space: Space,
    budget: Budget,
    *,
    mean_trials: float = 10.0,
    law: str = "tnb",
    shape: float = 0.0,
    objective: str = "accuracy",
    ledger: Ledger | str | Path | None = None,
) -> Tuned:
    """The best of K runs on candidates drawn from ``space``, K from ``law`` with mean ``mean_trials`` and secret.

    Guarantee:
        The receipt, one in each part, is written before the first trial and does not depend on K; nor does anything
        that is handed out, printed or stored, but for times of day. All K trials are run and scored; the selected run
        itself is released, with its score and what its steps released; nothing of any other.

    Edge cases:
        K = 0 (Poisson)    the untrained model, which no record decides, and no candidate
        all diverged       one of them: which, the records do not decide
        running time       grows with K, and is listed as unprotected; rows of the ledger carry times, to the second
    """
    plan = plan_selection(
        budget, space, sample_rate=task.sample_rate, mean_trials=mean_trials, law=law, shape=shape, objective=objective
    )
    task.cells(objective)  # refuses an objective that the task cannot score, before anything is paid
    if getattr(task, "watch", None) is not None:
        raise InvalidInput("the task has a watch, which would tell how many trials there are: expected none.")
    with commit_stages(task, plan.stages(task.split), budget, ledger) as payment:
        best = select(plan, task, payment.committed)
        epsilon = max(accountant.epsilon(each.event, budget.delta) for each in plan.outlays.values())
        return payment.outcome(
            "private_selection",
            task.untrained() if best is None else best.model,
            None if best is None else best.candidate,
            epsilon,
            decisions=(_story(plan, best, epsilon, budget.delta),),
            score=None if best is None else best.score,
            released=() if best is None else best.steps,
            unprotected=(
                "running time, and processes at work, both of which grow with the secret number of trials; also as "
                "times of rows in the ledger",
            ),
        )


def plan_selection(
    budget: Budget,
    space: Space,
    *,
    sample_rate: float = 1.0,
    mean_trials: float = 10.0,
    law: str = "tnb",
    shape: float = 0.0,
    objective: str = "accuracy",
    score_budget: Budget | None = None,
) -> SelectionPlan:
    """All noise multipliers of a selection within ``budget``; ``score_budget`` is the held-out records' part of it.

    >>> from dpilot.tune.space import Always, LogUniform
    >>> plan = plan_selection(Budget(1.0, 1e-5), Space(LogUniform(0.1, 10.0), Always(50)))
    >>> round(plan.outlays[None].noise_multiplier, 1), plan.trials.mean_trials
    (5.5, 10.0)
    """
    check_objective(objective)
    counts: tuple[int | None, ...] = (None,) if sample_rate == 1 else space.step_counts
    whole = {steps: whole_outlay(budget, sample_rate, steps) for steps in counts}

    def scale(factor: float) -> dict[int | None, Outlay]:
        return {steps: each.scale(factor) for steps, each in whole.items()}

    def selection(outlays: dict[int | None, Outlay]) -> RepeatAndSelect:
        events = [outlay.event for outlay in outlays.values()]
        return RepeatAndSelect(events[0] if len(events) == 1 else OneOf(events), mean_trials, law, shape)

    def scores(sigma: float) -> RepeatAndSelect:
        return RepeatAndSelect(Gaussian(sigma), mean_trials, law, shape)

    outlays = scale(least_factor(lambda factor: selection(scale(factor)), budget, sampled=sample_rate < 1))
    held_out = score_budget or budget
    least = whole_outlay(held_out).noise_multiplier
    sigma = least * least_factor(lambda factor: scores(least * factor), held_out, sampled=False)
    return SelectionPlan(space, outlays, selection(outlays), scores(sigma), sigma, objective)


def select(plan: SelectionPlan, task: Task, committed: Committed) -> Result | None:
    """Draw K, run and score K trials, and return the best; None if there was none.

    Guarantee:
        K and the candidates come from a fresh key and no record. Nothing of the losing trials is kept.
    """
    chain = Chain(fresh_key("trials"))
    count = law_of(plan.trials).draw(chain.generator("trials"))
    drawn = chain.generator("candidates")
    candidates = (plan.space.draw(drawn) for _ in range(count))
    best: Result | None = None
    with begin_stages(committed, [_TRIALS, _SCORES]) as (trained, scored):
        trials = TrialReceipts(trained, plan.trials, trials=count)
        scores = TrialReceipts(scored, plan.scores, trials=count)
        while group := list(islice(candidates, 8)):  # as many at a time as are trained together
            for result in _run_group(plan, task, group, trials, scores):
                if best is None or result.score.value > best.score.value:
                    best = result
    return best


def _run_group(
    plan: SelectionPlan, task: Task, group: list[Candidate], trials: TrialReceipts, scores: TrialReceipts
) -> Iterator[Result]:
    kept: list[tuple[StepRecord, ...]] = [()] * len(group)
    pairs = [(candidate, plan.outlay(candidate), partial(kept.__setitem__, j)) for j, candidate in enumerate(group)]
    models = task.train([outlay.trial(each, trials.of(outlay.event), keep) for each, outlay, keep in pairs])
    for candidate, model, steps in zip(group, models, kept, strict=True):
        receipt = scores.of(Gaussian(plan.score_multiplier))
        noisy = score(task, model, plan.objective, noise_multiplier=plan.score_multiplier, receipt=receipt)
        yield Result(candidate, model, noisy, steps)


def _story(plan: SelectionPlan, best: Result | None, epsilon: float, delta: float) -> str:
    """Does not depend on the number of trials, but for there being none."""
    event = plan.trials
    law = event.law if event.law == "poisson" else f"{event.law} of shape {event.shape:g}"
    what = "the untrained model, as no trial was drawn" if best is None else _words(best)
    return (
        f"{what}: released as the best of a secret number of runs, {event.mean_trials:g} on average ({law}), each of "
        f"epsilon {epsilon:.4g} at delta {delta:.3g} alone."
    )


def _words(best: Result) -> str:
    value = "diverged" if best.score.diverged else f"noisy score {best.score.value:.3g}"
    return f"step size {best.candidate.lr:.4g}, {best.candidate.steps} steps ({value})"
