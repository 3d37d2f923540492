"""What a tuner hands out: the model, how it was found, in words, and what all of it cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from dpilot.privacy.budget import Budget, Cost
from dpilot.privacy.ledger import Entry
from dpilot.records import StepRecord, step_columns
from dpilot.train.run import steps_frame
from dpilot.tune.candidate import Candidate
from dpilot.tune.law import ScalingLaw
from dpilot.tune.scoring import TrialScore

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TrialRecord", "Tuned"]


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One trial whose result was released: its stage, what it tried, at which epsilon, and its noisy score."""

    stage: int
    candidate: Candidate
    epsilon: float
    score: TrialScore


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
    unprotected: tuple[str, ...] = ("running time",)
    released: tuple[StepRecord, ...] = field(default=(), repr=False)

    def steps(self) -> pd.DataFrame:
        """One row a step of the run that was kept, of everything that it released beside the gradient."""
        return steps_frame(self.released)

    @property
    def private(self) -> bool:
        """Whether the total covers everything that was done."""
        return not any("not private" in stamp for stamp in self.stamps)

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
