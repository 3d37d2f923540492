"""Linear scaling: a few cheap trials at small budgets, a law r(epsilon) through them, and one run where it points.

Reference: Panda et al., "A New Linear Scaling Rule for Private Adaptive Hyperparameter Optimization", ICML 2024,
Algorithms 1 to 3. Theirs chooses trials by exact scores, which no budget covers; here scores are noisy tables on
held-out records, paid like everything else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpilot.privacy import accountant
from dpilot.privacy.budget import Budget
from dpilot.privacy.ledger import Committed, Ledger
from dpilot.records import StepRecord
from dpilot.tune.candidate import Candidate, SearchBox
from dpilot.tune.law import ScalingLaw
from dpilot.tune.outlays import whole_outlay
from dpilot.tune.record import TrialRecord, Tuned, epsilon_text
from dpilot.tune.rounds import FINAL, commit_stages, train_alone, train_one
from dpilot.tune.scaling_plan import ScalingPlan, plan_scaling
from dpilot.tune.scoring import TrialScore, rankable, spread
from dpilot.tune.task import KeepSteps, Task

__all__ = ["Search", "chosen", "epsilon_text", "final_run", "linear_scaling", "search", "train_at"]


@dataclass(frozen=True, slots=True)
class Search:
    """What the trials released: the law through their best r, the trials themselves, and the story in sentences."""

    law: ScalingLaw
    trials: tuple[TrialRecord, ...]
    notes: tuple[str, ...]


def linear_scaling(
    task: Task, budget: Budget, *, box: SearchBox, ledger: Ledger | str | Path | None = None, **options: Any
) -> Tuned:
    """Tune and train ``task`` within ``budget``, trials, scores and final run included; ``options``: ``plan_scaling``.

    Guarantee:
        All noise multipliers are fixed, and the whole price is in the ledger, before a record is read. Trials and
        final run touch the part "train", scores the part "held-out". What (lr, steps) a later run uses depends on
        earlier releases only, and not its price (docs/proofs/tuning.md).

    Edge cases:
        every guard that steps in is a sentence in ``decisions``: a law that falls, r outside the box, scores that
        noise does not let one rank, trials that would be hopeless from the start

    Example:
        ``linear_scaling(ProbeTask.of(x, split, size=n), Budget(1.0, 1e-5), box=SearchBox((0.1, 100.0), (10, 100)))``
    """
    plan = plan_scaling(
        budget,
        box=box,
        held_out_size=task.held_out_size,
        cells=task.cells(options.get("objective", "accuracy")),
        sample_rate=task.sample_rate,
        **options,
    )
    with commit_stages(task, plan.stages(task.split), budget, ledger) as payment:
        result = search(plan, task, payment.committed)
        candidate, notes = chosen(result.law, plan.final_epsilon, plan.box, plan.split)
        kept: list[StepRecord] = []
        model = final_run(plan, task, payment.committed, candidate, kept.extend)
        return payment.outcome(
            "linear_scaling",
            model,
            candidate,
            plan.final_epsilon,
            decisions=(*result.notes, *notes, _summary(plan, result.law, candidate)),
            trials=result.trials,
            law=result.law,
            released=tuple(kept),
        )


def search(plan: ScalingPlan, task: Task, committed: Committed) -> Search:
    """Run the trials of every stage, and fit the law through what they released."""
    points: list[tuple[float, float]] = []
    records: list[TrialRecord] = []
    notes = [plan.hopeless] if plan.hopeless else []
    for stage, each in enumerate(plan.rounds):
        candidates = [plan.box.candidate(r, plan.split) for r in _walks(plan, stage, points)]
        results = each.run(task, committed, candidates)
        trials = [TrialRecord(stage, result.candidate, plan.epsilons[stage], result.score) for result in results]
        best, note = _best(plan, stage, trials)
        if best is not None:
            points.append((plan.epsilons[stage], best))
        records += trials
        notes.append(note)
    return Search(plan.law(points), tuple(records), tuple(notes))


def chosen(law: ScalingLaw, epsilon: float, box: SearchBox, split: str) -> tuple[Candidate, tuple[str, ...]]:
    """The candidate that the law names at ``epsilon``, and what had to be guarded."""
    prediction = law.explain(epsilon)
    return box.candidate(prediction.r, split), prediction.notes


def final_run(
    plan: ScalingPlan, task: Task, committed: Committed, candidate: Candidate, keep: KeepSteps | None = None
) -> Any:
    """The last run, with all that is left; ``keep`` is called with its steps."""
    return train_one(task, committed, FINAL, plan.final, candidate, keep)


def train_at(
    task: Task,
    law: ScalingLaw,
    budget: Budget,
    *,
    box: SearchBox,
    split: str = "eta-first",
    ledger: Ledger | str | Path | None = None,
    purpose: str = FINAL,
) -> Tuned:
    """One run at another budget, where a law that was paid for once says it should go; the run pays for itself.

    Guarantee:
        Only the run is charged: predicting from a released law is free. With one ledger, many such runs add up in it.
    """
    outlay = whole_outlay(budget, task.sample_rate, box.steps[0])
    epsilon = accountant.epsilon(outlay.event, budget.delta)
    candidate, notes = chosen(law, epsilon, box, split)
    return train_alone(
        task,
        candidate,
        outlay,
        budget,
        method="train_at",
        epsilon=epsilon,
        ledger=ledger,
        purpose=purpose,
        decisions=(*notes, f"{_words(candidate)} from the law r({epsilon:.4g}) = {law.predict(epsilon):.4g}."),
        law=law,
    )


def _walks(plan: ScalingPlan, stage: int, points: Sequence[tuple[float, float]]) -> list[float]:
    """The r to try: spread over the box at first, then around where r would be in proportion to the budget."""
    count, ratio = plan.rounds[stage].count, plan.box.most / plan.box.least
    if plan.band is not None:
        return _walks_in_band(plan, stage, points, plan.band)
    if not points:
        return [plan.box.least * ratio ** ((place + 0.5) / count) for place in range(count)]
    epsilon, r = points[-1]
    centre = r * plan.epsilons[stage] / epsilon
    spacing = ratio ** (1 / count)
    return [plan.box.inside(centre * spacing ** ((2 * place + 1 - count) / count)) for place in range(count)]


def _walks_in_band(plan: ScalingPlan, stage: int, points: Sequence[tuple[float, float]], band: float) -> list[float]:
    """About where r is expected: by the last stage, or by the data-free r; half as wide, in logs, at each stage."""
    epsilon, r = points[-1] if points else (plan.final_epsilon, plan.fallback)
    centre = r * plan.variable_at(plan.epsilons[stage]) / plan.variable_at(epsilon)
    count = plan.rounds[stage].count
    return [plan.box.inside(centre * band ** ((2 * place + 1 - count) / count / 2**stage)) for place in range(count)]


def _best(plan: ScalingPlan, stage: int, trials: Sequence[TrialRecord]) -> tuple[float | None, str]:
    """The best r of a stage, or None where noise hides it, and the sentence that says so.

    Trials within the noise of the best count as it does: their geometric mean is taken.
    """
    scores = [each.score for each in trials]
    shown = ", ".join(f"{each.candidate.r:.4g} ({_score_text(each.score)})" for each in trials)
    epsilon = epsilon_text(plan.epsilons[stage])
    head = f"stage {stage + 1}, {len(trials)} trials at epsilon {epsilon}, r (step size times steps) and score: {shown}"
    noise = max(each.noise for each in scores)
    if not rankable(scores):
        room = f"noise alone puts equal ones up to {spread(scores):.2g} apart (95 %)"
        return None, f"{head}: no score is told from the others, as {room}; the stage is left out."
    best = max(each.value for each in scores)
    logs = [math.log(each.candidate.r) for each in trials if each.score.value >= best - each.score.noise]
    r = math.exp(sum(logs) / len(logs))
    return r, f"{head}: r = {r:.4g} (the mean of those within the noise, {noise:.2g}, of the best)."


def _score_text(score: TrialScore) -> str:
    return "diverged" if score.diverged else f"{score.value:.3g}"


def _words(candidate: Candidate) -> str:
    return f"step size {candidate.lr:.4g}, {candidate.steps} steps"


def _summary(plan: ScalingPlan, law: ScalingLaw, candidate: Candidate) -> str:
    source = " and ".join(f"{r:.4g} at {epsilon_text(epsilon)}" for epsilon, r in law.points)
    how = f"r = {candidate.r:.4g} extrapolated from {source}" if source else f"r = {candidate.r:.4g}, data-free"
    return (
        f"{_words(candidate)}: {how}; the final run costs epsilon {epsilon_text(plan.final_epsilon)} alone; trials "
        f"took about {100 * plan.share:.2g} % of the training part's budget, inside the total."
    )
