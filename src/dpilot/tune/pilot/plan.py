"""Everything that decides the privacy of a flight, fixed from declared numbers before a record is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from dpilot.metrics.counts import counts_event
from dpilot.privacy.batch_rule import batch_rule
from dpilot.privacy.budget import Budget
from dpilot.privacy.calibrate import noise_multiplier
from dpilot.privacy.events import Event
from dpilot.privacy.gaussian import gdp_epsilon, gdp_mu
from dpilot.privacy.ledger import Stage
from dpilot.tune.pilot.step import Course, head_course, module_course
from dpilot.tune.pilot.terms import SCORE_SHARE, Terms
from dpilot.tune.scaling_plan import TOO_NOISY, ScalingPlan, plan_scaling
from dpilot.tune.task import HELD_OUT

__all__ = ["METRICS", "Bought", "PilotPlan", "plan_heads", "plan_module"]

METRICS: Final = "held-out metrics"
_ROUNDED: Final = 1 - 1e-9  # so that squares add up to no more than the whole in floats
_FEW_STEPS: Final = 100
_MOST_STEPS: Final = 2_000
_EPOCHS: Final = 10.0
_UNKNOWN_SIZE: Final = 10_000
_NOT_ASKED: Final = "no trials: none were asked for, so all of the budget goes to the final run."
_NOT_KNOWN: Final = (
    "no trials: the size is bought, so it is not known beforehand whether they would tell anything; all of the budget "
    "goes to the final run. Declare about how many records there are to have trials."
)


@dataclass(frozen=True, slots=True)
class Bought:
    """What is bought before training, from all records: stages, and what they take of mu^2 together."""

    stages: Mapping[str, Event]
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class PilotPlan:
    """Purchases, trials, scores, final run and figures: one commitment.

    Guarantee:
        On either part, what is bought from all records and what is spent on the part cost no more than ``budget``
        together. Disjoint parts compose in parallel, so both may use all of it.
    """

    budget: Budget
    held_out: float
    scaling: ScalingPlan
    metrics_noise: float
    bought: Bought
    terms: Terms
    reason: str

    def stages(self, split: str | None) -> list[Stage]:
        """Everything that will happen, for ``ledger.commit``."""
        purchases = [Stage(name, event) for name, event in self.bought.stages.items()]
        figures = Stage(METRICS, counts_event(self.metrics_noise), HELD_OUT, split)
        return [*purchases, *self.scaling.stages(split), figures]

    @property
    def tuning_share(self) -> float:
        """The part of mu^2 that trials take from the final run."""
        return self.scaling.share * (1 - self.bought.share)

    def resized(self, size: float, classes: int) -> PilotPlan:
        """The same price with the walk of a size that was released: full batch, so steps may follow from it."""
        mu = 1 / self.scaling.final.noise_multiplier
        course = head_course(mu, size * (1 - self.held_out), classes, self.terms.epochs)
        return replace(self, scaling=replace(self.scaling, box=course.box, fallback=course.walk))


def plan_heads(
    budget: Budget,
    *,
    size: float | None,
    classes: int,
    cells: int,
    terms: Terms,
    bought: Bought | None = None,
) -> PilotPlan:
    """Linear heads on unit rows, full batch; ``size`` None is one still to be bought, and makes no trials.

    Example:
        >>> plan = plan_heads(Budget(1.0, 1e-5), size=48_842, classes=2, cells=1, terms=Terms())
        >>> len(plan.stages(None)), f"{plan.tuning_share:.1%}", round(plan.scaling.final_epsilon, 2)
        (14, '5.8%', 0.97)
        >>> plan_heads(Budget(0.1, 1e-5), size=500, classes=2, cells=1, terms=Terms()).scaling.rounds
        ()
    """
    budget.check_size(size)
    taken = bought or Bought({})
    left = _left(budget, taken.share)
    known = _UNKNOWN_SIZE if size is None else size
    held_out = terms.kept(budget, known)
    course = head_course(gdp_mu(left), known * (1 - held_out), classes, terms.epochs)
    scaling = _scaling(left, course, terms, held_out=known * held_out, cells=cells, never=_reason(terms, size))
    reason = (
        "full batch: every step reads every record, which needs no sampling and adds up exactly; "
        f"{course.box.steps[0]} steps, more (up to {course.box.steps[1]}) where a step would pass {course.box.lr[1]:g}"
    )
    return PilotPlan(budget, held_out, scaling, _metrics_noise(left, scaling), taken, terms, reason)


def plan_module(budget: Budget, *, size: float, cells: int, terms: Terms) -> tuple[PilotPlan, float]:
    """A module on Poisson batches: batch and steps by the batch rule; also the sampling rate.

    Example:
        ``plan_module(Budget(1.0, 1e-5), size=60_000, cells=1, terms=Terms())`` takes batches of 1,024 and 527 steps.
    """
    budget.check_size(size)
    held_out = terms.kept(budget, size)
    trained = max(1, round(size * (1 - held_out)))
    epochs = _EPOCHS if terms.epochs is None else terms.epochs
    advice = batch_rule(budget, size=trained, epochs=epochs, candidates=_batches(trained, epochs), min_steps=_FEW_STEPS)
    rate = advice.batch_size / trained
    sigma = noise_multiplier(budget, sample_rate=rate, steps=advice.steps)
    course = module_course(noise_multiplier=sigma, batch_size=advice.batch_size, steps=advice.steps)
    scaling = _scaling(
        budget, course, terms, held_out=size * held_out, cells=cells, never=_reason(terms, size), rate=rate
    )
    figures = _metrics_noise(budget, scaling)
    return PilotPlan(budget, held_out, scaling, figures, Bought({}), terms, advice.reason), rate


def _scaling(
    budget: Budget,
    course: Course,
    terms: Terms,
    *,
    held_out: float,
    cells: int,
    never: str | None,
    rate: float = 1.0,
) -> ScalingPlan:
    """Trials and final run."""
    plan = plan_scaling(
        budget,
        held_out_size=held_out,
        cells=cells,
        sample_rate=rate,
        trials=terms.trials,
        shares=Terms().shares if never else terms.shares,
        objective=terms.objective,
        score_share=SCORE_SHARE,
        too_noisy=0.0 if never else TOO_NOISY,
        **course.options(),
    )
    return replace(plan, hopeless=never) if never else plan


def _reason(terms: Terms, size: float | None) -> str | None:
    """Why there are no trials whatever the numbers, if so."""
    return _NOT_ASKED if terms.tuning == 0 else _NOT_KNOWN if size is None else None


def _left(budget: Budget, share: float) -> Budget:
    """What purchases that take ``share`` of mu^2 leave."""
    if share == 0:
        return budget
    return replace(budget, epsilon=gdp_epsilon(gdp_mu(budget) * math.sqrt(1 - share) * _ROUNDED, budget.delta))


def _metrics_noise(budget: Budget, scaling: ScalingPlan) -> float:
    """Figures take what scores leave of the held-out records' budget."""
    share = 1 - SCORE_SHARE if scaling.rounds else 1.0
    return 1 / (gdp_mu(budget) * math.sqrt(share) * _ROUNDED)


def _batches(size: int, epochs: float) -> list[int]:
    """Powers of two between the most and the fewest steps; the size itself if none fits."""
    powers = [2**k for k in range(size.bit_length()) if epochs * size / _MOST_STEPS <= 2**k < size]
    return [power for power in powers if epochs * size / power >= _FEW_STEPS] or powers[:1] or [size]
