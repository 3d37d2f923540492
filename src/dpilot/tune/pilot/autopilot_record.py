"""The record of an autopilot run: each decision in a sentence, curves, and what a report is made from."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final

import numpy as np

from dpilot.privacy.budget import Cost
from dpilot.privacy.ledger import Committed, Ledger
from dpilot.privacy.receipt import step_noise_multiplier
from dpilot.records import FitRecord, unit
from dpilot.tune.pilot.defaults import MOMENTUM
from dpilot.tune.pilot.outcome import AutopilotResult, Outcome
from dpilot.tune.pilot.pilot_plan import PilotPlan
from dpilot.tune.record import Tuned

__all__ = ["RunDescription", "record_run"]

_HOW: Final = (
    "everything that touched the records, tuning included, in one commitment, composed on each part; the larger of "
    "both parts' totals"
)


@dataclass(frozen=True, slots=True)
class RunDescription:
    """What the kind of model adds: sentences, lines for data and plan, what is not protected, thresholds of steps."""

    clipping: str
    model: str
    data: Mapping[str, Any]
    plan: Mapping[str, Any]
    unprotected: tuple[str, ...]
    notes: tuple[str, ...] = ()
    thresholds: tuple[float, ...] = ()


def record_run(
    plan: PilotPlan,
    outcome: Outcome,
    description: RunDescription,
    *,
    book: Ledger,
    committed: Committed,
    own: bool,
    stamp: str,
) -> AutopilotResult:
    """The outcome with its record; ``own`` says that the ledger is of this run alone."""
    cost = book.spent() if own else Cost(plan.budget.epsilon, plan.budget.delta)
    decisions = _decisions(plan, outcome, description)
    tuned = Tuned(
        method="autopilot",
        model=outcome.model,
        candidate=outcome.candidate,
        epsilon=plan.scaling.final_epsilon,
        budget=plan.budget,
        spent=cost,
        entries=committed.entries(),
        decisions=decisions,
        stamps=(stamp,),
        trials=outcome.search.trials,
        law=outcome.search.law,
        unprotected=description.unprotected,
    )
    record = FitRecord(
        privacy={
            "epsilon": cost.epsilon,
            "delta": cost.delta,
            "unit": unit(description.unprotected),
            "accounting": _HOW,
            "head": book.head(),
            "versions": {
                "python": platform.python_version(),
                **{name: version(name) for name in ("dpilot", "torch", "numpy")},
            },
        },
        data=dict(description.data),
        plan=_plan(plan, outcome, description),
        decisions=decisions,
        metrics=tuple(metric.record() for metric in outcome.metrics),
        thresholds=description.thresholds,
        ledger=tuple(entry.as_dict() for entry in tuned.entries),
        stamps=(stamp,),
        unprotected=description.unprotected,
        curves=_curves(plan, outcome),
    )
    return AutopilotResult(tuned, record, outcome.metrics)


def _decisions(plan: PilotPlan, outcome: Outcome, description: RunDescription) -> tuple[str, ...]:
    """The choices of the run in the order they were made."""
    scaling = plan.scaling
    bought = " and the ".join(plan.bought.stages)
    return (
        _summary(plan, outcome, description),
        *description.notes,
        *([f"{plan.bought.share:.1%} of mu^2 buys the {bought}."] if bought else []),
        f"{100 * plan.held_out:.2g} % of the records, each by a secret coin, are kept apart: scores of trials and the "
        "figures are read on them, and take nothing from the budget of training.",
        f"{plan.reason[0].upper()}{plan.reason[1:].rstrip('.')}.",
        f"{description.clipping[0].upper()}{description.clipping[1:]}.",
        *(f"{note[0].upper()}{note[1:]}" for note in (*outcome.search.notes, *outcome.notes)),
        f"The final run has epsilon {scaling.final_epsilon:.4g}; {plan.tuning_share:.1%} of mu^2 went to tuning.",
        f"Model: {description.model}.",
    )


def _summary(plan: PilotPlan, outcome: Outcome, description: RunDescription) -> str:
    """The whole run in one sentence."""
    steps = outcome.candidate.steps
    tried = " and ".join(f"{r / steps:.3g} at epsilon {epsilon:.2g}" for epsilon, r in outcome.search.law.points)
    how = f"extrapolated from {tried}" if tried else "data-free"
    first, clipping = (each.split(":")[0] for each in (plan.reason, description.clipping))
    return (
        f"In short: {first}, {steps} steps; {clipping}; step size {outcome.candidate.lr:.3g}, {how}; "
        f"{plan.tuning_share:.1%} of mu^2 went to tuning."
    )


def _plan(plan: PilotPlan, outcome: Outcome, description: RunDescription) -> dict[str, Any]:
    final, steps = plan.scaling.final, outcome.candidate.steps
    each = step_noise_multiplier(final.noise_multiplier, steps) if final.sample_rate == 1 else final.noise_multiplier
    return {
        "sample_rate": final.sample_rate,
        "steps": steps,
        "noise_multiplier": each,
        "lr": outcome.candidate.lr,
        "momentum": MOMENTUM,
        **description.plan,
        "trials": len(outcome.search.trials),
        "tuning_share": plan.tuning_share,
        "objective": plan.options.objective,
    }


def _curves(plan: PilotPlan, outcome: Outcome) -> dict[str, tuple[tuple[float, float], ...]]:
    """Step size against epsilon, at the final number of steps: the law, the trials, and the final run."""
    if not outcome.search.trials:
        return {}
    steps, law = outcome.candidate.steps, outcome.search.law
    grid = np.geomspace(plan.scaling.epsilons[0] / 2, plan.budget.epsilon, 40)
    name = "step size against epsilon"
    return {
        f"{name}: fitted": tuple((float(epsilon), law.predict(float(epsilon)) / steps) for epsilon in grid),
        f"{name}: trials": tuple((each.epsilon, each.candidate.r / steps) for each in outcome.search.trials),
        f"{name}: final run": ((plan.scaling.final_epsilon, outcome.candidate.r / steps),),
    }
