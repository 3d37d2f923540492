"""What a tuner pays and runs: all stages committed before the first record is read, then trials in rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dpilot.privacy.budget import Budget, Cost
from dpilot.privacy.events import Gaussian
from dpilot.privacy.ledger import Committed, Ledger, Stage, commitment, describe_ledger
from dpilot.privacy.receipt import Receipt
from dpilot.records import StepRecord
from dpilot.tune.candidate import Candidate
from dpilot.tune.record import Tuned
from dpilot.tune.scoring import TrialScore, score
from dpilot.tune.task import HELD_OUT, TRAIN, KeepSteps, Outlay, Task

__all__ = [
    "FINAL",
    "Result",
    "Round",
    "TuningPayment",
    "begin_stages",
    "commit_stages",
    "score_models",
    "train_alone",
    "train_one",
]

FINAL: Final = "final run"
"""The purpose of the run that is kept, in the ledger."""


@dataclass(frozen=True, slots=True)
class TuningPayment:
    """A commitment for the tuning of ``task`` whose stages can begin, and what it costs."""

    task: Task
    budget: Budget
    committed: Committed
    cost: Cost
    own: bool  # a ledger made for it alone

    def outcome(self, method: str, model: Any, candidate: Candidate | None, epsilon: float, **more: Any) -> Tuned:
        """What the tuner hands out, with its whole price and the stamp of its noise; ``more``: fields of ``Tuned``."""
        return Tuned(
            method=method,
            model=model,
            candidate=candidate,
            epsilon=epsilon,
            budget=self.budget,
            spent=self.cost,
            entries=self.committed.entries(),
            stamps=(self.task.stamp,),
            paid_in=describe_ledger(self.committed, own=self.own),
            unit=self.committed.unit,
            **more,
        )


@contextmanager
def commit_stages(
    task: Task, stages: Sequence[Stage], budget: Budget, ledger: Ledger | str | Path | None
) -> Iterator[TuningPayment]:
    """Commit ``stages`` of a tuning at once, within ``budget``, in ``ledger`` or in one of its own, then run it.

    Guarantee:
        The whole price is on disk before the body runs; what does not fit raises BudgetExceeded and writes nothing, and
        a delta of 1/size of the task or more is refused. A crash, a kill or an exception leaves all of it spent, stages
        that never began included.

    Edge cases:
        no ledger    a precommitted one of the tuner's own budget is made, and dropped: the record keeps its entries
        a ledger     is charged what it makes of the stages; the cost reported here is the whole ``budget``
    """
    size = task.size + task.held_out_size
    with commitment(stages, budget, ledger, dataset="one tuning", size=size, unit=task.unit) as (made, cost):
        yield TuningPayment(task, budget, made, cost, ledger is None)


@contextmanager
def begin_stages(committed: Committed, purposes: Sequence[str]) -> Iterator[list[Receipt]]:
    """The receipts of several planned stages that run together, one for each purpose."""
    with ExitStack() as stack:
        yield [stack.enter_context(committed.stage(purpose)) for purpose in purposes]


def train_one(
    task: Task, committed: Committed, purpose: str, outlay: Outlay, candidate: Candidate, keep: KeepSteps | None = None
) -> Any:
    """The model of one run, under the stage that was committed for it; ``keep`` is called with its steps."""
    with committed.stage(purpose) as receipt:
        (model,) = task.train([outlay.trial(candidate, receipt, keep)])
    return model


def train_alone(
    task: Task,
    candidate: Candidate,
    outlay: Outlay,
    budget: Budget,
    *,
    method: str,
    epsilon: float,
    ledger: Ledger | str | Path | None,
    purpose: str = FINAL,
    **more: Any,
) -> Tuned:
    """One run and nothing else, paid as ``outlay``, of a candidate that no unpaid look at a record decided."""
    stage = Stage(purpose, outlay.event, TRAIN, task.split)
    with commit_stages(task, [stage], budget, ledger) as payment:
        kept: list[StepRecord] = []
        model = train_one(task, payment.committed, purpose, outlay, candidate, kept.extend)
        return payment.outcome(method, model, candidate, epsilon, released=tuple(kept), **more)


def score_models(
    task: Task,
    committed: Committed,
    purposes: Sequence[str],
    models: Sequence[Any],
    objective: str,
    noise_multiplier: float,
) -> list[TrialScore]:
    """One noisy score of each model, each under the stage of its purpose."""
    with begin_stages(committed, purposes) as receipts:
        return [
            score(task, model, objective, noise_multiplier=noise_multiplier, receipt=receipt)
            for model, receipt in zip(models, receipts, strict=True)
        ]


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """A trial's model, released, its noisy score, and what its steps released where that is kept."""

    candidate: Candidate
    model: Any
    score: TrialScore
    steps: tuple[StepRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class Round:
    """``count`` trials, paid as ``outlay`` each in the part "train", and a score each in the part "held-out".

    Guarantee:
        Trials are run together, each with noise and batches of its own; each score is one noisy table. All trials are
        run and all are scored, whatever comes out: what is not used is not given back.
    """

    name: str
    outlay: Outlay
    count: int
    score_multiplier: float
    objective: str

    def stages(self, split: str | None) -> list[Stage]:
        """What the round costs, for ``ledger.commit``."""
        scored = Gaussian(self.score_multiplier)
        trials = [Stage(name, self.outlay.event, TRAIN, split) for name in self._names("trial")]
        return [*trials, *(Stage(name, scored, HELD_OUT, split) for name in self._names("score"))]

    def run(self, task: Task, committed: Committed, candidates: Sequence[Candidate]) -> list[Result]:
        """Train and score ``candidates``, as many as were paid for."""
        with begin_stages(committed, self._names("trial")) as receipts:
            pairs = zip(candidates, receipts, strict=True)
            models = task.train([self.outlay.trial(candidate, receipt) for candidate, receipt in pairs])
        scores = score_models(task, committed, self._names("score"), models, self.objective, self.score_multiplier)
        return [Result(*each) for each in zip(candidates, models, scores, strict=True)]

    def _names(self, what: str) -> list[str]:
        return [f"{what} {self.name}.{place + 1}" for place in range(self.count)]
