"""Run an autopilot plan: trials, a law through them, the final run where it points, and held-out figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from dpilot import _validate
from dpilot.metrics.counts import Layout, noisy_counts
from dpilot.metrics.metric import Metric
from dpilot.metrics.scores import scores
from dpilot.privacy.budget import Cost
from dpilot.privacy.ledger import Committed
from dpilot.records import FitRecord
from dpilot.tables.planning import METRICS
from dpilot.tune.candidate import Candidate
from dpilot.tune.pilot.learners import Learner
from dpilot.tune.pilot.pilot_plan import PilotPlan
from dpilot.tune.record import Tuned
from dpilot.tune.rounds import begin_stages
from dpilot.tune.scaling import Search, chosen, final_run, search

__all__ = ["AutopilotResult", "Figures", "Outcome", "Tell", "run_plan", "silent"]

Tell = Callable[[str], None]
"""Called with each message, made of what was declared or released: for a screen."""


def silent(text: str) -> None:
    """Say nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a run released: the model, what its trials found, and the figures."""

    model: Any = field(repr=False)
    candidate: Candidate
    search: Search
    notes: tuple[str, ...]
    metrics: tuple[Metric, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """Released figures with their 95 % intervals.

    Example:
        >>> made = Figures((Metric("accuracy", "", 0.85, (0.84, 0.86), (0.83, 0.87)),))
        >>> made["accuracy"].value, len(made)
        (0.85, 1)
        >>> print(made)
        figure                of                      value   these records       population
        accuracy                                      0.850   0.840 to 0.860      0.830 to 0.870
    """

    metrics: tuple[Metric, ...]

    def __iter__(self) -> Iterator[Metric]:
        return iter(self.metrics)

    def __len__(self) -> int:
        return len(self.metrics)

    def __getitem__(self, which: int | str) -> Metric:
        if isinstance(which, int):
            return self.metrics[which]
        _validate.one_of([each.name for each in self.metrics], figure=which)
        return next(each for each in self.metrics if each.name == which)

    def __str__(self) -> str:
        head = f"{'figure':<22}{'of':<24}{'value':<8}{'these records':<20}population"
        shown = [each for each in self.metrics if each.name != "confusion"]  # grows with the square of the classes
        left = len(self.metrics) - len(shown)
        note = [f"and {left} figures of the confusion table: iterate to see them"] if left else []
        return "\n".join([head, *(_line(each) for each in shown), *note])


def _line(metric: Metric) -> str:
    noise, sampling = (f"{low:.3f} to {high:.3f}" for low, high in (metric.noise_interval, metric.sampling_interval))
    return f"{metric.name:<22}{metric.of:<24}{metric.value:<8.3f}{noise:<20}{sampling}"


@dataclass(frozen=True, slots=True, eq=False)
class AutopilotResult:
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


def run_plan(plan: PilotPlan, learner: Learner, committed: Committed, layout: Layout, tell: Tell = silent) -> Outcome:
    """Run what was planned and paid.

    Guarantee:
        Trials and final run draw on the part "train", scores and figures on "held-out". Which (lr, steps) the final
        run uses depends on releases alone, and not its price. Nothing is run twice, nothing is left out.
    """
    scaling, task = plan.scaling, learner.task
    if scaling.rounds:
        shown = " and ".join(f"{epsilon:.2g}" for epsilon in scaling.epsilons)
        tell(f"{len(scaling.rounds)} stages of {plan.options.trials} trials, at epsilon {shown} each")
    result = search(scaling, task, committed)
    for note in result.notes:
        tell(note)
    candidate, notes = chosen(result.law, scaling.final_epsilon, scaling.box, scaling.split)
    tell(f"final run: {candidate.steps} steps of {candidate.lr:.4g} at epsilon {scaling.final_epsilon:.4g}")
    model = final_run(scaling, task, committed, candidate)
    with begin_stages(committed, [METRICS]) as (receipt,):
        counts = noisy_counts(
            learner.predictions(model),
            layout,
            noise_multiplier=plan.metrics_noise,
            receipt=receipt,
            noise=learner.noise(),
        )
    metrics = scores(counts)
    tell(f"held-out accuracy {metrics[0].value:.3f}, noise included")
    return Outcome(model, candidate, result, notes, metrics)
