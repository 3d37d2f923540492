"""The plan of linear scaling: every stage and every noise multiplier, from declared numbers alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dpilot import _validate
from dpilot.errors import InvalidInput
from dpilot.metrics.objective import check_objective
from dpilot.privacy import accountant
from dpilot.privacy.budget import Budget
from dpilot.privacy.gaussian import gdp_epsilon, gdp_mu, stages_mu
from dpilot.privacy.ledger import Stage
from dpilot.tune.candidate import SPLITS, SearchBox
from dpilot.tune.law import VARIABLES, ScalingLaw
from dpilot.tune.outlays import stage_outlays
from dpilot.tune.rounds import FINAL, Round
from dpilot.tune.scoring import score_noise
from dpilot.tune.task import TRAIN, Outlay

__all__ = ["SHARES", "TOO_NOISY", "ScalingPlan", "plan_scaling"]

SHARES: Final = (0.011, 0.039)
"""Of mu^2, for each stage: 5 % together, a little less than the constants of Panda et al. (5.75 %), and no worse."""
TOO_NOISY: Final = 0.02
"""Of a score, above which there are no trials: on data of their own 0.01 was as good, 0.05 lost (docs/autopilot.md)."""


@dataclass(frozen=True, slots=True)
class ScalingPlan:
    """``rounds`` are the stages of trials, ``final`` pays the last run.

    ``epsilons`` are those of one trial of each round, alone; ``mu`` is that of all training together (exact for full
    batches). ``hopeless`` says why no trial is planned, where that is so. ``band``: trials are spread by up to this
    factor either way about where they are expected, ``fallback`` in proportion to the budget; None: over the box.
    """

    budget: Budget
    box: SearchBox
    rounds: tuple[Round, ...]
    epsilons: tuple[float, ...]
    final: Outlay
    final_epsilon: float
    mu: float
    split: str
    degree: int
    variable: str
    fallback: float
    hopeless: str | None = None
    band: float | None = None

    @property
    def share(self) -> float:
        """The part of mu^2 that tuning takes from the final run."""
        if not self.rounds:  # what a sampled run's calibration leaves unused is not tuning
            return 0.0
        kept = gdp_mu(Budget(self.final_epsilon, self.budget.delta)) / gdp_mu(self.budget)
        return max(0.0, 1 - kept**2)

    def stages(self, split: str | None) -> list[Stage]:
        """Everything that will happen, for ``ledger.commit``."""
        planned = [stage for each in self.rounds for stage in each.stages(split)]
        return [*planned, Stage(FINAL, self.final.event, TRAIN, split)]

    def variable_at(self, epsilon: float) -> float:
        """What the law is a function of, at ``epsilon``."""
        return epsilon if self.variable == "epsilon" else gdp_mu(Budget(epsilon, self.budget.delta))

    def law(self, points: Sequence[tuple[float, float]]) -> ScalingLaw:
        """The law through released points."""
        return ScalingLaw(
            points=tuple(points),
            low=self.box.least,
            high=self.box.most,
            fallback=self.fallback,
            degree=self.degree,
            variable=self.variable,
            delta=self.budget.delta,
        )


def plan_scaling(
    budget: Budget,
    *,
    box: SearchBox,
    held_out_size: float,
    cells: int = 1,
    sample_rate: float = 1.0,
    trials: int = 3,
    shares: Sequence[float] = SHARES,
    mus: Sequence[float] | None = None,
    final_mu: float | None = None,
    degree: int = 1,
    variable: str = "epsilon",
    split: str = "eta-first",
    objective: str = "accuracy",
    score_share: float = 0.5,
    too_noisy: float = TOO_NOISY,
    fallback: float | None = None,
    band: float | None = None,
) -> ScalingPlan:
    """Stages of ``trials`` runs each and a final run, together within ``budget``; nothing is read, nothing is paid.

    ``shares`` are what each stage takes of mu^2; ``mus`` fixes instead the mu of one trial of each stage. The final
    run takes the rest, or ``final_mu``. Scores take ``score_share`` of what the held-out records have; the rest of
    theirs is left for final metrics.

    Guarantee:
        Full batch: sqrt(trials * sum mu_i^2 + mu_final^2) <= mu(budget), exactly. Sampled: the PLD of all stages fits.

    Edge cases:
        scores expected to be noisier than ``too_noisy``    no trial is planned, all goes to the final run
        sample_rate < 1                                     the box must have one number of steps

    Example:
        >>> plan = plan_scaling(Budget(1.0, 1e-5), box=SearchBox((0.1, 10.0), (10, 100)), held_out_size=5000)
        >>> len(plan.stages(None)), round(plan.final_epsilon, 2), f"{plan.share:.1%}"
        (13, 0.97, '5.0%')
    """
    _validate.one_of(SPLITS, split=split)
    _validate.one_of(VARIABLES, variable=variable)
    check_objective(objective)
    trials = _validate.count(trials=trials, least=2)
    each = _trial_mus(budget, trials, shares, mus)
    if len(each) <= _validate.count(least=0, degree=degree):
        raise InvalidInput(f"degree is {degree} with {len(each)} stages: expected more stages than the degree.")
    # n = trials * stages tables at multiplier sigma cost n / sigma^2 of the held-out part's mu^2: set to score_share of
    # it (test_receipts_of_each_part_fit_the_budget_by_a_second_accountant).
    score_multiplier = math.sqrt(trials * len(each) / _validate.rate(score_share=score_share)) / gdp_mu(budget)
    hopeless = _hopeless(cells, held_out_size, score_multiplier, too_noisy)
    if hopeless:
        each, final_mu = (), None
    steps = _steps(box, sample_rate)
    outlays, final = stage_outlays(budget, each, trials, final_mu=final_mu, sample_rate=sample_rate, steps=steps)
    middle = math.sqrt(box.least * box.most) if fallback is None else box.inside(fallback)
    return ScalingPlan(
        budget=budget,
        box=box,
        rounds=tuple(
            Round(str(place + 1), outlay, trials, score_multiplier, objective) for place, outlay in enumerate(outlays)
        ),
        epsilons=tuple(gdp_epsilon(mu, budget.delta) for mu in each),
        final=final,
        final_epsilon=accountant.epsilon(final.event, budget.delta),
        mu=stages_mu([*each * trials, _nominal_mu(final, budget.delta)]),
        split=split,
        degree=degree,
        variable=variable,
        fallback=middle,
        hopeless=hopeless,
        band=None if band is None else _validate.positive(band=band),
    )


def _hopeless(cells: int, size: float, score_multiplier: float, too_noisy: float) -> str | None:
    """Why no trial would be informative, if so; from declared numbers, so it is free."""
    noise = score_noise(cells, _validate.positive(held_out_size=size), score_multiplier)
    if noise <= too_noisy:
        return None
    return (
        f"no trials: with {size:,.0f} held-out records a score would carry noise of {noise:.2g}, more than "
        f"{too_noisy:g}, so all of the budget goes to the final run."
    )


def _steps(box: SearchBox, sample_rate: float) -> int | None:
    """The one number of steps that sampled runs have."""
    few, many = box.steps
    if sample_rate < 1 and few != many:
        raise InvalidInput(
            f"steps are {box.steps} at a sample rate of {sample_rate}: expected one number of steps, as only the step "
            "size may depend on results when batches are sampled. Use SearchBox.fixed(lr, steps)."
        )
    return few if sample_rate < 1 else None


def _trial_mus(budget: Budget, trials: int, shares: Sequence[float], mus: Sequence[float] | None) -> tuple[float, ...]:
    """mu of one trial of each stage, rising."""
    if mus is not None:
        each = tuple(_validate.positive(mu=mu) for mu in mus)
    else:
        each = tuple(gdp_mu(budget) * math.sqrt(_validate.open_unit(share=share) / trials) for share in shares)
    if list(each) != sorted(set(each)):
        raise InvalidInput(f"the stages have mu {each}: expected each stage to have more than the one before.")
    return each


def _nominal_mu(outlay: Outlay, delta: float) -> float:
    if outlay.sample_rate == 1:
        return 1 / outlay.noise_multiplier
    return gdp_mu(Budget(accountant.epsilon(outlay.event, delta), delta))
