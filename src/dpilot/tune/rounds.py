"""A round: several trials at the same price, run together, each scored once; everything in it is released."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpilot.privacy.events import Gaussian
from dpilot.privacy.ledger import Committed, Stage
from dpilot.tune.candidate import Candidate
from dpilot.tune.paying import TuningPayment, begin_stages
from dpilot.tune.scoring import TrialScore, score
from dpilot.tune.task import HELD_OUT, TRAIN, Outlay, Task

__all__ = ["Result", "Round"]


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """A trial's model, released, and its noisy score."""

    candidate: Candidate
    model: Any
    score: TrialScore


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

    def run(self, task: Task, payment: TuningPayment | Committed, candidates: Sequence[Candidate]) -> list[Result]:
        """Train and score ``candidates``, as many as were paid for."""
        with begin_stages(payment, self._names("trial")) as receipts:
            pairs = zip(candidates, receipts, strict=True)
            models = task.train([self.outlay.trial(candidate, receipt) for candidate, receipt in pairs])
        with begin_stages(payment, self._names("score")) as receipts:
            scores = [
                score(task, model, self.objective, noise_multiplier=self.score_multiplier, receipt=receipt)
                for model, receipt in zip(models, receipts, strict=True)
            ]
        return [Result(*each) for each in zip(candidates, models, scores, strict=True)]

    def _names(self, what: str) -> list[str]:
        return [f"{what} {self.name}.{place + 1}" for place in range(self.count)]
