"""What the pipeline asks of a learner, and what it hands to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from dpilot._arrays import Floats
from dpilot.data.schema import Schema
from dpilot.fit.declaration import Declaration
from dpilot.fit.figures import HeldOutFigures
from dpilot.fit.keys import FitKeys
from dpilot.fit.population import Parts
from dpilot.fit.purchases import Purchases
from dpilot.fit.source import RowReader
from dpilot.privacy.budget import Budget, Cost
from dpilot.privacy.ledger import Committed, Stage
from dpilot.privacy.unit import RECORD, PrivacyUnit
from dpilot.records import MetricRecord, StepRecord
from dpilot.train.progress import Progress

__all__ = [
    "Learner",
    "LearnerPlan",
    "PaidRun",
    "Predictor",
    "Tell",
    "Trained",
    "kept_apart",
    "silent",
]

Tell = Callable[[str], None]
"""Called with each message, made of what was declared or released: for a screen."""


def silent(text: str) -> None:
    """Say nothing."""


def kept_apart(held_out: float) -> str:
    """What records and figures have to do with each other, in a sentence."""
    return (
        f"{100 * held_out:.0f} % of the records, each by a secret coin, are kept apart for the metrics: a record "
        "is in one part only and pays for that part alone, so these figures cost the training nothing."
    )


class Predictor(Protocol):
    """A released model: rows of numbers in, outputs out; saved and loaded as data."""

    @property
    def kind(self) -> str: ...

    def outputs(self, rows: Any) -> Floats:
        """One row of outputs for each: logits of the classes, or the number in the target's own unit."""
        ...

    def state(self) -> tuple[dict[str, Any], Mapping[str, Any]]:
        """Plain data and tensors that make it up."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """What training released: the model, and what the record says of it."""

    predictor: Predictor
    figures: HeldOutFigures
    plan: dict[str, Any]
    decisions: tuple[str, ...]
    steps: tuple[StepRecord, ...] = ()
    trials: tuple[MetricRecord, ...] = ()
    curves: dict[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    details: Any = None

    @property
    def thresholds(self) -> tuple[float, ...]:
        return tuple(step.threshold for step in self.steps)


@dataclass(frozen=True, slots=True)
class PaidRun:
    """A fit whose price is on disk: its commitment, its randomness, its size, and who is told of progress."""

    committed: Committed
    keys: FitKeys
    split: str
    size: float
    cost: Cost
    tell: Tell = silent
    progress: Progress | None = None
    class_weights: tuple[float, ...] | None = None  # declared or released: they multiply the loss before clipping
    unit: PrivacyUnit = RECORD  # with the cap that was declared or bought


class LearnerPlan(Protocol):
    """Everything that decides the privacy of training and figures, fixed from declared numbers.

    Guarantee:
        On each part, the purchases and the stages of that part cost no more than the budget together.
    """

    @property
    def held_out(self) -> float:
        """The share of the records that is kept apart for scores and figures."""
        ...

    @property
    def figures(self) -> HeldOutFigures: ...

    def stages(self, split: str) -> list[Stage]:
        """Training, and scores of trials, each on its own part."""
        ...

    def reader(self, schema: Schema) -> RowReader:
        """What reads the features, once all bounds are known."""
        ...

    def train(self, parts: Parts, run: PaidRun) -> Trained:
        """Run what was planned and paid."""
        ...

    def shorten(self, size: float, rows: int) -> tuple[LearnerPlan, float]:
        """A plan to time on ``rows`` made-up records, and the factor from its time to that on ``size`` records."""
        ...


class Learner(Protocol):
    """What is trained. ``gaussian``: whether everything it releases is a Gaussian on all records of a part."""

    @property
    def gaussian(self) -> bool: ...

    def purchases(self, declared: Declaration, budget: Budget) -> Purchases: ...

    def plan(self, declared: Declaration, budget: Budget, purchases: Purchases) -> LearnerPlan: ...
