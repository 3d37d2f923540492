"""Everything that decides the privacy of an autopilot run, fixed from declared numbers before a record is read."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from dpilot.metrics.counts import counts_event
from dpilot.privacy.batch_rule import batch_rule
from dpilot.privacy.budget import Budget
from dpilot.privacy.calibrate import noise_multiplier
from dpilot.privacy.gaussian import gdp_epsilon, gdp_mu
from dpilot.privacy.ledger import Stage
from dpilot.tune.defaults import SCORE_SHARE, AutopilotOptions, StepDefaults, head_defaults, module_defaults
from dpilot.tune.scaling_plan import TOO_NOISY, ScalingPlan, plan_scaling
from dpilot.tune.task import HELD_OUT

__all__ = ["EPOCHS", "LEAST_STEPS", "METRICS", "AutopilotPlan", "batch_candidates", "plan_heads", "plan_module"]

EPOCHS: Final = 10.0
LEAST_STEPS: Final = 100
METRICS: Final = "held-out metrics"

_ROUNDED: Final = 1 - 1e-9  # so that squares add up to no more than the whole in floats
_NOT_ASKED: Final = "no trials: none were asked for, so all of the budget goes to the final run."
_NOT_KNOWN: Final = (
    "no trials: the size is bought, so it is not known beforehand whether they would tell anything; all of the budget "
    "goes to the final run. Declare about how many records there are to have trials."
)


@dataclass(frozen=True, slots=True)
class AutopilotPlan:
    """Trials, scores, final run and figures, of what ``taken`` leaves of the squared mu of ``budget``.

    Guarantee:
        On either part, what was taken from all records and what is spent on the part cost no more than ``budget``
        together. Disjoint parts compose in parallel, so both may use all of it.
    """

    budget: Budget
    held_out: float
    scaling: ScalingPlan
    metrics_noise: float
    taken: float
    options: AutopilotOptions
    reason: str

    def stages(self, split: str | None) -> list[Stage]:
        """Everything that will happen, for ``ledger.commit``."""
        figures = Stage(METRICS, counts_event(self.metrics_noise), HELD_OUT, split)
        return [*self.scaling.stages(split), figures]

    @property
    def tuning_share(self) -> float:
        """The part of mu^2 that trials take from the final run."""
        return self.scaling.share * (1 - self.taken)

    def resize(self, size: float, classes: int) -> AutopilotPlan:
        """The same price with the walk of a size that was released: full batch, so steps may follow from it."""
        mu = 1 / self.scaling.final.noise_multiplier
        trained, options = size * (1 - self.held_out), self.options
        defaults = head_defaults(mu, trained, classes, options.epochs, threshold=options.threshold)
        return replace(self, scaling=replace(self.scaling, box=defaults.box, fallback=defaults.walk))


def plan_heads(
    budget: Budget,
    *,
    size: float | None,
    classes: int,
    cells: int,
    options: AutopilotOptions,
    taken: float = 0.0,
) -> AutopilotPlan:
    """Linear heads on unit rows, full batch; ``size`` None is one still to be bought, and makes no trials.

    Example:
        >>> plan = plan_heads(Budget(1.0, 1e-5), size=48_842, classes=2, cells=1, options=AutopilotOptions())
        >>> len(plan.stages(None)), f"{plan.tuning_share:.1%}", round(plan.scaling.final_epsilon, 2)
        (14, '5.0%', 0.97)
        >>> plan_heads(Budget(0.1, 1e-5), size=500, classes=2, cells=1, options=AutopilotOptions()).scaling.rounds
        ()
    """
    budget.check_size(size)
    left = _budget_after(budget, taken)
    known = 10_000 if size is None else size
    held_out = options.share_held_out(budget, known)
    defaults = head_defaults(gdp_mu(left), known * (1 - held_out), classes, options.epochs, threshold=options.threshold)
    scaling = _scaling(left, defaults, options, held_out=known * held_out, cells=cells, never=_reason(options, size))
    (few, most), (_, largest) = defaults.box.steps, defaults.box.lr
    reason = (
        "full batch: every step reads every record, which needs no sampling and adds up exactly; "
        f"{few} steps, more (up to {most}) where a step would pass {largest:g}"
    )
    return AutopilotPlan(budget, held_out, scaling, _metrics_noise(left, scaling), taken, options, reason)


def plan_module(budget: Budget, *, size: float, cells: int, options: AutopilotOptions) -> tuple[AutopilotPlan, float]:
    """A module on Poisson batches: batch and steps by the batch rule; also the sampling rate.

    Example:
        At ``Budget(1.0, 1e-5)`` and a size of 60,000 it takes batches of 1,024 and 527 steps.
    """
    budget.check_size(size)
    held_out = options.share_held_out(budget, size)
    trained = max(1, round(size * (1 - held_out)))
    epochs = EPOCHS if options.epochs is None else options.epochs
    advice = batch_rule(
        budget, size=trained, epochs=epochs, candidates=batch_candidates(trained, epochs), min_steps=LEAST_STEPS
    )
    rate = advice.batch_size / trained
    sigma = noise_multiplier(budget, sample_rate=rate, steps=advice.steps)
    defaults = module_defaults(noise_multiplier=sigma, batch_size=advice.batch_size, steps=advice.steps)
    scaling = _scaling(
        budget, defaults, options, held_out=size * held_out, cells=cells, never=_reason(options, size), rate=rate
    )
    figures = _metrics_noise(budget, scaling)
    return AutopilotPlan(budget, held_out, scaling, figures, 0.0, options, advice.reason), rate


def batch_candidates(size: int, epochs: float, most_steps: int = 2_000) -> list[int]:
    """Powers of two between the most and the least steps, and the size itself if none fits."""
    least = epochs * size / most_steps
    powers = [2**k for k in range(size.bit_length()) if least <= 2**k < size]
    return [power for power in powers if epochs * size / power >= LEAST_STEPS] or powers[:1] or [size]


def _scaling(
    budget: Budget,
    defaults: StepDefaults,
    options: AutopilotOptions,
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
        trials=options.trials,
        shares=AutopilotOptions().shares if never else options.shares,
        objective=options.objective,
        score_share=SCORE_SHARE,
        too_noisy=0.0 if never else TOO_NOISY,
        **defaults.options(),
    )
    return replace(plan, hopeless=never) if never else plan


def _reason(options: AutopilotOptions, size: float | None) -> str | None:
    """Why there are no trials whatever the numbers, if so."""
    return _NOT_ASKED if options.tuning == 0 else _NOT_KNOWN if size is None else None


def _budget_after(budget: Budget, share: float) -> Budget:
    """What purchases that take ``share`` of mu^2 leave."""
    if share == 0:
        return budget
    return replace(budget, epsilon=gdp_epsilon(gdp_mu(budget) * math.sqrt(1 - share) * _ROUNDED, budget.delta))


def _metrics_noise(budget: Budget, scaling: ScalingPlan) -> float:
    """Figures take what scores leave of the held-out records' budget."""
    # Figures of multiplier sigma cost 1 / sigma^2: set to what scores leave of mu^2, 1e-9 less for rounding
    # (test_what_is_bought_is_taken_from_both_parts).
    share = 1 - SCORE_SHARE if scaling.rounds else 1.0
    return 1 / (gdp_mu(budget) * math.sqrt(share) * _ROUNDED)
