"""The flight: trials, a law through them, the final run where it points, and figures on the held-out records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dpilot.metrics.counts import Layout, noisy_counts
from dpilot.metrics.metric import Metric
from dpilot.metrics.scores import scores
from dpilot.privacy.budget import Cost
from dpilot.privacy.ledger import Committed, Ledger
from dpilot.records import FitRecord
from dpilot.tune.candidate import Candidate
from dpilot.tune.paying import begun
from dpilot.tune.pilot.figures import Figures
from dpilot.tune.pilot.learners import Learner
from dpilot.tune.pilot.plan import METRICS, PilotPlan
from dpilot.tune.record import Tuned
from dpilot.tune.scaling import Search, chosen, final_run, search

__all__ = ["Flight", "Flown", "Tell", "charge", "fly", "silent"]

Tell = Callable[[str], None]
"""Is told, in words, what was declared or released: for a screen."""


def silent(text: str) -> None:
    """Say nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Flown:
    """What a flight released: the model, what was found on the way, and the figures."""

    model: Any = field(repr=False)
    candidate: Candidate
    found: Search
    notes: tuple[str, ...]
    metrics: tuple[Metric, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Flight:
    """What the autopilot hands out: the tuned model with its story, and the record that a report is made from.

    Everything in it was declared or released, and may be shown.
    """

    tuned: Tuned
    record: FitRecord = field(repr=False)
    metrics: tuple[Metric, ...] = field(repr=False)

    @property
    def model(self) -> Any:
        return self.tuned.model

    @property
    def spent(self) -> Cost:
        """The total, tuning and figures included."""
        return self.tuned.spent

    @property
    def decisions(self) -> tuple[str, ...]:
        return self.record.decisions

    def __str__(self) -> str:
        return f"{self.tuned}\n{Figures(self.metrics)}"


def charge(plan: PilotPlan, book: Ledger, split: str) -> Committed:
    """Put the price of everything on disk, as one commitment, before a record is read."""
    share = plan.budget.delta if book.bound == "basic" else None
    return book.commit(plan.stages(split), delta=share)


def fly(plan: PilotPlan, learner: Learner, committed: Committed, layout: Layout, tell: Tell = silent) -> Flown:
    """Run what was planned and paid.

    Guarantee:
        Trials and final run draw on the part "train", scores and figures on "held-out". Which (lr, steps) the final
        run uses depends on releases alone, and not its price. Nothing is run twice, nothing is left out.
    """
    scaling, task = plan.scaling, learner.task
    if scaling.rounds:
        shown = " and ".join(f"{epsilon:.2g}" for epsilon in scaling.epsilons)
        tell(f"{len(scaling.rounds)} stages of {plan.terms.trials} trials, at epsilon {shown} each")
    found = search(scaling, task, committed)
    for note in found.notes:
        tell(note)
    candidate, notes = chosen(found.law, scaling.final_epsilon, scaling.box, scaling.split)
    tell(f"final run: {candidate.steps} steps of {candidate.lr:.4g} at epsilon {scaling.final_epsilon:.4g}")
    model = final_run(scaling, task, committed, candidate)
    with begun(committed, [METRICS]) as (receipt,):
        counts = noisy_counts(
            learner.scored(model),
            layout,
            noise_multiplier=plan.metrics_noise,
            receipt=receipt,
            noise=learner.noise(),
        )
    metrics = scores(counts)
    tell(f"held-out accuracy {metrics[0].value:.3f}, noise included")
    return Flown(model, candidate, found, notes, metrics)
