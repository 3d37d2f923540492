"""What is public about a fit, and its way to the data: planned in full, paid at once, then released stage by stage."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from dpilot import _validate
from dpilot.mechanism import EXACT, Draws, Noise, gaussian_event
from dpilot.privacy.budget import Budget, Cost
from dpilot.privacy.events import Composed, Event, Gaussian
from dpilot.privacy.gaussian import gdp_mu
from dpilot.privacy.ledger import Committed, Entry, Ledger, Stage, commitment, describe_ledger
from dpilot.privacy.notices import warn_of_refusal
from dpilot.privacy.unit import RECORD, PrivacyUnit
from dpilot.records import neighbours

__all__ = [
    "SIZE_SHARE", "CommittedRun", "LinearProblem", "Privacy", "commit_stages", "gaussian_events", "multiplier",
    "state_total",
]  # fmt: skip

SIZE_SHARE: Final = 0.005
"""Of the squared mu, for a size that is bought."""


@dataclass(frozen=True, slots=True)
class LinearProblem:
    """The public numbers of a fit: ``mu`` is what it may cost in all, ``size`` the number of records to divide by.

    ``size`` is None while it is still to be bought; then nothing that is planned may depend on it.
    """

    features: int
    intercept: bool
    size: float | None
    budget: Budget

    @property
    def width(self) -> int:
        """Coefficients, the intercept among them."""
        return self.features + self.intercept

    @property
    def mu(self) -> float:
        """The budget as Gaussian DP, in which releases add by squares."""
        return gdp_mu(self.budget)

    @property
    def relative_noise(self) -> float:
        """Coefficients over mu times size: what the noise of all steps weighs beside a target of unit width."""
        if self.size is None:
            return 0.016  # as if there were enough records: nothing planned may depend on their number
        return self.width / (self.mu * max(self.size, 1.0))

    @property
    def hopeless(self) -> bool:
        """Whether noise hides any coefficients, as declared numbers tell: one value for all is then the better guess.

        Chosen on synthetic tables at epsilon 0.1 and 0.3: within these limits the worst of 5 or 6 seeds was about no
        worse than the centre.
        """
        return self.size is not None and (self.relative_noise > 0.12 or self.mu * self.size < 100)


def multiplier(problem: LinearProblem, share: float) -> float:
    """The noise multiplier of a release that may take ``share`` of the squared mu.

    >>> problem = LinearProblem(3, True, 1000.0, Budget(1.0, 1e-5))
    >>> round(multiplier(problem, 1.0), 3), round(multiplier(problem, 0.25), 3)
    (3.731, 7.461)
    """
    return 1 / (problem.mu * math.sqrt(_validate.rate(share=share)))


def gaussian_events(multipliers: tuple[float, ...]) -> Event:
    """One Gaussian for each multiplier, in order."""
    return gaussian_event(multipliers[0]) if len(multipliers) == 1 else Composed(map(Gaussian, multipliers))


@dataclass(frozen=True, slots=True)
class CommittedRun:
    """One fit's way to the data: the stages of its commitment, and one noise source."""

    committed: Committed
    noise: Noise = EXACT

    @contextmanager
    def stage(self, purpose: str) -> Iterator[Draws]:
        """Begin a planned stage; its releases are drawn from the receipt that comes out."""
        with self.committed.stage(purpose) as receipt:
            yield receipt


@dataclass(frozen=True, slots=True)
class Privacy:
    """What a fit cost, in all and entry by entry, and what it does not protect."""

    budget: Budget
    spent: Cost
    entries: tuple[Entry, ...] = field(repr=False)
    unprotected: tuple[str, ...]
    noise: str
    unit: PrivacyUnit = RECORD
    paid_in: dict[str, Any] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        who = neighbours(self.unprotected, self.unit)
        lines = [f"epsilon {self.spent.epsilon:.4g}, delta {self.spent.delta:.3g}; neighbours: {who}"]
        lines += [f"  {e.purpose:<12} epsilon {e.cost.epsilon:.4g} alone, {e.state}" for e in self.entries]
        lines += [f"  not protected: {what}" for what in self.unprotected]
        return "\n".join([*lines, f"  noise: {self.noise}"])


@contextmanager
def commit_stages(
    stages: Sequence[Stage],
    budget: Budget,
    *,
    ledger: Ledger | str | Path | None,
    noise: Noise,
    unprotected: tuple[str, ...],
    unit: PrivacyUnit = RECORD,
) -> Iterator[tuple[CommittedRun, list[Privacy]]]:
    """Pay for all ``stages`` at once, run the body, and leave behind what it cost.

    Without a ledger, a precommitted one of the fit's own budget is made and dropped: ``Privacy`` keeps its entries, and
    a PrivacyWarning says that nothing else is counted. A refusal warns too, before it is raised.

    Guarantee:
        The whole price is on disk before the body runs; what does not fit raises BudgetExceeded and writes nothing.
        numpy raises and warns of no number in the body, whatever the caller set by ``np.seterr``: that would tell of
        one record.
    """
    with (
        warn_of_refusal(),
        commitment(stages, budget, ledger, dataset="one fit", size=None, unit=unit) as (made, cost),
        np.errstate(all="ignore"),
    ):
        costs: list[Privacy] = []
        yield CommittedRun(made, noise), costs
        costs.append(
            Privacy(
                budget, cost, made.entries(), unprotected, noise.stamp, unit, describe_ledger(made, own=ledger is None)
            )
        )


def state_total(fitted: Any, privacy: Privacy) -> Any:
    """The fitted estimator, which says what was paid for it in all: by itself, and in its record where it has one."""
    fitted.privacy_ = privacy
    record = getattr(fitted, "record_", None)
    if record is not None:
        spent = {"epsilon": privacy.spent.epsilon, "delta": privacy.spent.delta, "tuning": "inside"}
        unprotected = tuple(dict.fromkeys((*privacy.unprotected, *record.unprotected)))
        paid = {**record.privacy, **spent, "unit": neighbours(unprotected, privacy.unit), "ledger": privacy.paid_in}
        ledger = tuple(entry.as_dict() for entry in privacy.entries)
        fitted.record_ = replace(record, privacy=paid, unprotected=unprotected, ledger=ledger)
        fitted.fitted_ = replace(fitted.fitted_, record=fitted.record_)
    return fitted
