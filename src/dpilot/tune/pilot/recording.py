"""What a flight tells of itself: each decision in a sentence, curves, and the record that a report is made from."""

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
from dpilot.tune.pilot.flight import Flight, Flown
from dpilot.tune.pilot.plan import PilotPlan
from dpilot.tune.pilot.step import MOMENTUM
from dpilot.tune.record import Tuned

__all__ = ["Told", "recorded"]

_HOW: Final = (
    "everything that touched the records, tuning included, in one commitment, composed on each part; the larger of "
    "both parts' totals"
)
_POINTS: Final = 40
_LIBRARIES: Final = ("dpilot", "torch", "numpy")


@dataclass(frozen=True, slots=True)
class Told:
    """What the kind of model adds: sentences, lines for data and plan, what is not protected, thresholds of steps."""

    clipping: str
    model: str
    data: Mapping[str, Any]
    plan: Mapping[str, Any]
    unprotected: tuple[str, ...]
    notes: tuple[str, ...] = ()
    thresholds: tuple[float, ...] = ()


def recorded(
    plan: PilotPlan, flown: Flown, told: Told, *, book: Ledger, committed: Committed, own: bool, stamp: str
) -> Flight:
    """The flight with its record; ``own`` says that the ledger is of this flight alone."""
    cost = book.spent() if own else Cost(plan.budget.epsilon, plan.budget.delta)
    decisions = _decisions(plan, flown, told)
    tuned = Tuned(
        method="autopilot",
        model=flown.model,
        candidate=flown.candidate,
        epsilon=plan.scaling.final_epsilon,
        budget=plan.budget,
        spent=cost,
        entries=committed.entries(),
        decisions=decisions,
        stamps=(stamp,),
        trials=flown.found.trials,
        law=flown.found.law,
        unprotected=told.unprotected,
    )
    record = FitRecord(
        privacy={
            "epsilon": cost.epsilon,
            "delta": cost.delta,
            "unit": unit(told.unprotected),
            "accounting": _HOW,
            "head": book.head(),
            "versions": {"python": platform.python_version(), **{name: version(name) for name in _LIBRARIES}},
        },
        data=dict(told.data),
        plan=_plan(plan, flown, told),
        decisions=decisions,
        metrics=tuple(metric.record() for metric in flown.metrics),
        thresholds=told.thresholds,
        ledger=tuple(entry.as_dict() for entry in tuned.entries),
        stamps=(stamp,),
        unprotected=told.unprotected,
        curves=_curves(plan, flown),
    )
    return Flight(tuned, record, flown.metrics)


def _decisions(plan: PilotPlan, flown: Flown, told: Told) -> tuple[str, ...]:
    """The choices of the flight in the order they were made."""
    scaling = plan.scaling
    bought = " and the ".join(plan.bought.stages)
    return (
        _summary(plan, flown, told),
        *told.notes,
        *([f"{plan.bought.share:.1%} of mu^2 buys the {bought}."] if bought else []),
        f"{100 * plan.held_out:.2g} % of the records, each by a secret coin, are kept apart: scores of trials and the "
        "figures are read on them, and take nothing from the budget of training.",
        f"{plan.reason[0].upper()}{plan.reason[1:].rstrip('.')}.",
        f"{told.clipping[0].upper()}{told.clipping[1:]}.",
        *(f"{note[0].upper()}{note[1:]}" for note in (*flown.found.notes, *flown.notes)),
        f"The final run has epsilon {scaling.final_epsilon:.4g}; {plan.tuning_share:.1%} of mu^2 went to tuning.",
        f"Model: {told.model}.",
    )


def _summary(plan: PilotPlan, flown: Flown, told: Told) -> str:
    """The whole flight in one sentence."""
    steps = flown.candidate.steps
    tried = " and ".join(f"{r / steps:.3g} at epsilon {epsilon:.2g}" for epsilon, r in flown.found.law.points)
    how = f"extrapolated from {tried}" if tried else "data-free"
    first = plan.reason.split(":")[0]
    return (
        f"In short: {first}, {steps} steps; {told.clipping.split(':')[0]}; step size {flown.candidate.lr:.3g}, {how}; "
        f"{plan.tuning_share:.1%} of mu^2 went to tuning."
    )


def _plan(plan: PilotPlan, flown: Flown, told: Told) -> dict[str, Any]:
    final, steps = plan.scaling.final, flown.candidate.steps
    each = step_noise_multiplier(final.noise_multiplier, steps) if final.sample_rate == 1 else final.noise_multiplier
    return {
        "sample_rate": final.sample_rate,
        "steps": steps,
        "noise_multiplier": each,
        "lr": flown.candidate.lr,
        "momentum": MOMENTUM,
        **told.plan,
        "trials": len(flown.found.trials),
        "tuning_share": plan.tuning_share,
        "objective": plan.terms.objective,
    }


def _curves(plan: PilotPlan, flown: Flown) -> dict[str, tuple[tuple[float, float], ...]]:
    """Step size against epsilon, at the final number of steps: the law, the trials, and the final run."""
    if not flown.found.trials:
        return {}
    steps, law = flown.candidate.steps, flown.found.law
    grid = np.geomspace(plan.scaling.epsilons[0] / 2, plan.budget.epsilon, _POINTS)
    name = "step size against epsilon"
    return {
        f"{name}: fitted": tuple((float(epsilon), law.predict(float(epsilon)) / steps) for epsilon in grid),
        f"{name}: trials": tuple((each.epsilon, each.candidate.r / steps) for each in flown.found.trials),
        f"{name}: final run": ((plan.scaling.final_epsilon, flown.candidate.r / steps),),
    }
