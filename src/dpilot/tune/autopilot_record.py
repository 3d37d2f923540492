"""The story of an autopilot run: each decision in a sentence, curves, and what a report is made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpilot.privacy.receipt import step_noise_multiplier
from dpilot.records import MetricRecord, StepRecord
from dpilot.tune.autopilot_plan import AutopilotPlan
from dpilot.tune.candidate import Candidate
from dpilot.tune.defaults import MOMENTUM
from dpilot.tune.record import epsilon_text
from dpilot.tune.scaling import Search

__all__ = ["Outcome", "curves_of", "explain", "plan_of", "trials_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What trials and final run released: the model, where the law pointed, what its trials found, and its steps."""

    model: Any = field(repr=False)
    candidate: Candidate
    search: Search
    notes: tuple[str, ...]
    steps: tuple[StepRecord, ...] = field(default=(), repr=False)


def explain(plan: AutopilotPlan, outcome: Outcome, *, clipping: str, model: str) -> tuple[str, ...]:
    """The choices of the run in the order they were made, the whole run in one sentence first."""
    scaling = plan.scaling
    return (
        _summary(plan, outcome, clipping),
        f"{100 * plan.held_out:.2g} % of the records, drawn in secret, are kept apart: scores of trials and figures "
        "are read on them, and take nothing from the training part's budget.",
        f"{plan.reason[0].upper()}{plan.reason[1:].rstrip('.')}; the final run takes {outcome.candidate.steps}.",
        f"{clipping[0].upper()}{clipping[1:]}.",
        *(f"{note[0].upper()}{note[1:]}" for note in (*outcome.search.notes, *outcome.notes)),
        f"The final run costs epsilon {epsilon_text(scaling.final_epsilon)} alone; {_tuning(plan)}.",
        f"Model: {model}.",
    )


def _summary(plan: AutopilotPlan, outcome: Outcome, clipping: str) -> str:
    steps, r = outcome.candidate.steps, outcome.candidate.r
    tried = " and ".join(
        f"{each:.4g} at epsilon {epsilon_text(epsilon)}" for epsilon, each in outcome.search.law.points
    )
    how = f"extrapolated from {tried}" if tried else "data-free"
    first, clipped = (each.split(":")[0] for each in (plan.reason, clipping))
    walk = f"step size {outcome.candidate.lr:.3g} (times steps: {r:.4g}, {how})"
    return f"In short: {first}, {steps} steps; {clipped}; {walk}; {_tuning(plan)}."


def _tuning(plan: AutopilotPlan) -> str:
    """What trials took. Of mu^2, which adds up: of epsilon there is no such share."""
    if not plan.tuning_share:
        return "nothing was spent on trying settings"
    return f"trials took about {100 * plan.tuning_share:.2g} % of the training part's budget, inside the total"


def plan_of(plan: AutopilotPlan, outcome: Outcome) -> dict[str, Any]:
    """The final run's plan as plain data."""
    final, steps = plan.scaling.final, outcome.candidate.steps
    each = step_noise_multiplier(final.noise_multiplier, steps) if final.sample_rate == 1 else final.noise_multiplier
    return {
        "sample_rate": final.sample_rate,
        "steps": steps,
        "noise_multiplier": each,
        "lr": outcome.candidate.lr,
        "momentum": MOMENTUM,
        "trials": len(outcome.search.trials),
        **({"noise_of_all_steps": final.noise_multiplier} if final.sample_rate == 1 else {}),
        "tuning_share": plan.tuning_share,
        "objective": plan.options.objective,
    }


def trials_of(outcome: Outcome) -> tuple[MetricRecord, ...]:
    """The noisy scores of the trials, with the 95 % interval of their noise."""
    return tuple(each.figure() for each in outcome.search.trials)


def curves_of(plan: AutopilotPlan, outcome: Outcome) -> dict[str, tuple[tuple[float, float], ...]]:
    """r against mu: the law, every trial, and the final run."""
    law, trials = outcome.search.law, outcome.search.trials
    if not trials:
        return {}
    grid = np.geomspace(plan.scaling.epsilons[0] / 2, plan.budget.epsilon, 40)
    final = ((plan.scaling.final_epsilon, outcome.candidate.r),)
    return law.drawn(
        {
            "fitted": tuple((float(epsilon), law.predict(float(epsilon))) for epsilon in grid),
            "trials": tuple((each.epsilon, each.candidate.r) for each in trials),
            "final run": final,
        }
    )
