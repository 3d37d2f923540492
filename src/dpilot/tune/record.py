"""What a tuner hands out: the model, how it was found, in words, and what all of it cost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from decimal import ROUND_CEILING, Context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpilot.metrics.interval import quantile
from dpilot.privacy.budget import Budget, Cost
from dpilot.privacy.ledger import Entry
from dpilot.privacy.unit import RECORD, PrivacyUnit
from dpilot.records import RUNNING_TIME, FitRecord, MetricRecord, StepRecord, step_columns
from dpilot.train.run import steps_frame
from dpilot.tune.candidate import Candidate
from dpilot.tune.law import ScalingLaw
from dpilot.tune.scoring import TrialScore

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TrialRecord", "Tuned", "epsilon_text"]


def epsilon_text(epsilon: float) -> str:
    """Three digits, rounded up as ledgers are shown.

    >>> epsilon_text(0.9183), epsilon_text(0.05)
    ('0.919', '0.05')
    """
    return f"{Context(prec=3, rounding=ROUND_CEILING).create_decimal(repr(float(epsilon))).normalize():f}"


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One trial whose result was released: its stage, what it tried, at which epsilon, and its noisy score."""

    stage: int
    candidate: Candidate
    epsilon: float
    score: TrialScore

    def figure(self) -> MetricRecord:
        """The score as a figure, with the 95 % interval of its noise; one that diverged has 0, for certain."""
        value, reach = (0.0, 0.0) if self.score.diverged else (self.score.value, quantile() * self.score.noise)
        tried = self.candidate
        said = (
            f"r {tried.r:.4g}: step size {tried.lr:.3g}, {tried.steps} steps, at epsilon {epsilon_text(self.epsilon)}"
        )
        around = (value - reach, value + reach)
        return MetricRecord("score of a trial", said, value, around, around, exact=self.score.noise == 0)


@dataclass(frozen=True, slots=True, eq=False)
class Tuned:
    """The outcome of a tuner. Everything in it was declared or released.

    ``decisions``: one sentence for each choice. ``spent``: everything the ledger booked for it, tuning included.
    ``stamps``: what the reader must know of the noise, or of a guarantee that does not hold. ``trials`` is empty where
    their number is secret. ``epsilon``: of the run that was kept, alone. ``released``: what the steps of that run
    released (``steps()`` as a frame); heads on features have none.
    """

    method: str
    model: Any = field(repr=False)
    candidate: Candidate | None
    epsilon: float
    budget: Budget
    spent: Cost
    entries: tuple[Entry, ...] = field(repr=False)
    decisions: tuple[str, ...]
    stamps: tuple[str, ...]
    trials: tuple[TrialRecord, ...] = ()
    score: TrialScore | None = None
    law: ScalingLaw | None = None
    unprotected: tuple[str, ...] = (RUNNING_TIME,)
    paid_in: dict[str, Any] = field(default_factory=dict, repr=False)
    unit: PrivacyUnit = RECORD
    released: tuple[StepRecord, ...] = field(default=(), repr=False)

    def steps(self) -> pd.DataFrame:
        """One row a step of the run that was kept, of everything that it released beside the gradient."""
        return steps_frame(self.released)

    @property
    def private(self) -> bool:
        """Whether the total covers everything that was done."""
        return not any("not private" in stamp for stamp in self.stamps)

    @property
    def record(self) -> FitRecord:
        """The tuning as reports see it."""
        score = () if self.score is None else (self.score.value, quantile() * self.score.noise)
        return FitRecord.of(
            epsilon=self.spent.epsilon,
            delta=self.spent.delta,
            accounting="every trial, every score and the run that was kept, together, priced before the first began",
            unprotected=self.unprotected,
            unit=self.unit,
            tuning="inside",
            paid_in=self.paid_in,
            plan={
                "method": self.method,
                "budget": self.budget.as_dict(),
                "epsilon_of_the_run_that_was_kept": self.epsilon,
                **({} if self.candidate is None else asdict(self.candidate)),
            },
            decisions=self.decisions,
            metrics=tuple(_selection_metrics(*score)) if score else (),
            ledger=tuple(entry.as_dict() for entry in self.entries),
            stamps=self.stamps,
            curves={} if self.law is None else self.law.curves(),
            trials=tuple(each.figure() for each in self.trials),
        )

    def report(self, path: str | Path, **options: Any) -> Path:
        """Write the report, one HTML page; it costs nothing. ``options``: see ``FitRecord.write_report``."""
        return self.record.write_report(path, **options)

    def _repr_html_(self) -> str:
        return self.record.summary_table(self.method)

    def __str__(self) -> str:
        kept = f"; the run that was kept {self.epsilon:.4g}" if self.private else ""
        lines = [f"{self.method}: epsilon {self.spent.epsilon:.4g}, delta {self.spent.delta:.3g} in all{kept}"]
        lines += [f"  {decision}" for decision in self.decisions]
        lines += [f"  not protected: {what}" for what in self.unprotected]
        return "\n".join([*lines, *(f"  {stamp}" for stamp in self.stamps)])

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a report, the model left out."""
        names = ("method", "epsilon", "decisions", "stamps", "unprotected")
        return {
            **{name: getattr(self, name) for name in names},
            "candidate": None if self.candidate is None else asdict(self.candidate),
            "budget": self.budget.as_dict(),
            "spent": asdict(self.spent),
            "trials": [asdict(each) for each in self.trials],
            "score": None if self.score is None else asdict(self.score),
            "steps": {name: column.tolist() for name, column in step_columns(self.released).items()},
            "law": None if self.law is None else self.law.to_dict(),
            "entries": [entry.as_dict() for entry in self.entries],
        }


def _selection_metrics(value: float, reach: float) -> Iterator[MetricRecord]:
    """The score of the run that was kept, which was chosen for it, so that it is too high on average."""
    if math.isfinite(value):
        around = (value - reach, value + reach)
        yield MetricRecord("score of the run that was kept", "", value, around, around, exact=reach == 0)
