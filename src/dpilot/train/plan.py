"""The plan of one private run: everything that decides its privacy, frozen and public, before a record is read."""

from __future__ import annotations

import inspect
import json
import os
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dpilot import _validate, clipping
from dpilot._html import facts_table
from dpilot.clipping import Clipping
from dpilot.errors import InvalidInput
from dpilot.privacy.budget import Budget, Cost
from dpilot.privacy.calibrate import noise_multiplier as calibrated
from dpilot.privacy.events import Event, Gaussian, PoissonSampled, Repeated
from dpilot.privacy.ledger import Ledger, fit_budget, ledger_exists
from dpilot.privacy.unit import RECORD, PrivacyUnit

FORMAT: Final = 1


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Plan:
    """How often, how much, how noisy: budget, declared size, sampling rate, steps, noise, clipping rule, and for whom.

    ``unit`` is what a step samples and clips as one: a record, or a person with all their rows. ``size`` is the number
    of units; ``public_size`` says that it was taken from the data, which publishes it.

    Guarantee:
        ``event`` is what a run of this plan costs, whichever model, optimizer, engine or chunk size is used, and it
        costs no more than ``budget``. Nothing in it depends on the data: a data set of another length is accepted
        silently, and the divisor stays ``expected_batch_size``.

    Example:
        >>> plan = Plan.calibrate(Budget(1.0, 1e-5), size=1_000, batch_size=1_000, steps=10, clipping="constant")
        >>> plan.steps, plan.sample_rate, round(plan.noise_multiplier, 3)
        (10, 1.0, 11.797)
        >>> Plan.from_json(plan.to_json()) == plan
        True
    """

    budget: Budget
    size: int
    sample_rate: float
    steps: int
    noise_multiplier: float
    clipping: Clipping
    cost: Cost = field(compare=False)
    unit: PrivacyUnit = RECORD
    public_size: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _validate.count("Declare the number of units.", size=self.size))
        object.__setattr__(self, "sample_rate", _validate.rate(sample_rate=self.sample_rate))
        object.__setattr__(self, "steps", _validate.count(steps=self.steps))
        object.__setattr__(self, "noise_multiplier", _validate.positive(noise_multiplier=self.noise_multiplier))
        if self.cost.epsilon > self.budget.epsilon or self.cost.delta > self.budget.delta:
            raise InvalidInput(f"the plan costs {self.cost}: expected no more than {self.budget}. Calibrate it anew.")

    @classmethod
    def calibrate(
        cls,
        budget: Budget,
        *,
        size: int,
        batch_size: float | None = None,
        sample_rate: float | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        clipping: str | Clipping = "bounded-slack",
        ledger: Ledger | str | os.PathLike[str] | None = None,
        unit: str | PrivacyUnit = RECORD,
        rows_per_unit: int | None = None,
        public_size: bool = False,
    ) -> Plan:
        """The plan whose noise the budget asks for. With a ledger, it must fit what is left there, now.

        A ledger, or the path of one that is there, gives the plan its part of delta: as much of the total delta as
        the budget's epsilon is of the total epsilon.

        Give the expected batch size or the rate, and the epochs or the steps; all are declared numbers. A delta of
        1/size or more is refused, unless the budget allows it: ``Budget(1.0, 0.01, allow_large_delta=True)``.

        ``unit="patient_id"`` protects a patient with all their rows, of which ``rows_per_unit`` count (8 where nothing
        is declared); sizes are then numbers of patients. ``public_size`` says that ``size`` was taken from the data: it
        is then published, which every record and report of the run lists.
        """
        protected = PrivacyUnit.of(unit, rows_per_unit)
        size = _validate.count("Declare the number of units.", size=size)
        budget.check_size(size)
        budget = fit_budget(ledger, budget)
        rate = _rate(size, batch_size, sample_rate)
        count = _steps(rate, epochs, steps)
        sigma = calibrated(budget, sample_rate=rate, steps=count)
        cost = Cost(budget.epsilon, budget.delta)
        plan = cls(budget, size, rate, count, sigma, _rule(clipping), cost, protected, bool(public_size))
        if ledger is not None:
            plan._check_fits(ledger)
        return plan

    def with_unit(self, by_ids: bool, rows_per_unit: int | None = None, missing_unit: str | None = None) -> Plan:
        """The same plan for its unit; a plan for records, where ids say which rows are one unit's, for "unit"s.

        Edge cases:
            a cap, or a treatment of missing ids, that is not the unit's own    refused

        >>> plan = Plan.calibrate(Budget(1.0, 1e-5), size=1_000, batch_size=1_000, steps=10, clipping="constant")
        >>> str(plan.with_unit(by_ids=True, rows_per_unit=4).unit), plan.with_unit(by_ids=False) is plan
        ('unit, 4 rows', True)
        """
        if self.unit.is_record and by_ids:
            return replace(self, unit=PrivacyUnit("unit", rows_per_unit, missing_unit or "null"))
        if rows_per_unit not in (None, self.unit.rows) or missing_unit not in (None, self.unit.missing):
            raise InvalidInput(
                f"rows_per_unit is {rows_per_unit!r} and missing_unit {missing_unit!r}, and the plan's unit is "
                f"{self.unit}: expected what it was made for. Leave both out; a plan that names no unit takes them, "
                "with units=, the ids of the rows."
            )
        return self

    def _check_fits(self, ledger: Ledger | str | os.PathLike[str]) -> None:
        if not isinstance(ledger, Ledger):
            if not ledger_exists(ledger):  # it will be made for the plan's own budget
                return
            ledger = Ledger.read(ledger)
        share = self.budget.delta if ledger.bound == "basic" else None
        if not ledger.fits(self.event, delta=share, unit=self.unit):
            raise InvalidInput(
                f"a plan of {self.budget} does not fit the ledger, which has {ledger.remaining()} left. "
                "Plan with a smaller budget, or extend the ledger with a reason."
            )

    @property
    def expected_batch_size(self) -> float:
        """The divisor of every mean: rate times declared size. The realised size of a batch is secret."""
        return self.sample_rate * self.size

    @property
    def event(self) -> Event:
        """What the run will cost."""
        return Repeated(self.step_event, self.steps)

    @property
    def step_event(self) -> Event:
        """What one step costs."""
        step = Gaussian(self.noise_multiplier)
        return step if self.sample_rate == 1 else PoissonSampled(self.sample_rate, step)

    def _repr_html_(self) -> str:
        facts = {
            "budget": self.budget,
            "cost": f"epsilon {self.cost.epsilon:.4g} at delta {self.cost.delta:.3g}",
            "protects": self.unit.neighbours(self.public_size),
            "published size" if self.public_size else "declared size": f"{self.size:,}",
            "steps": f"{self.steps:,}, each of {self.expected_batch_size:.4g} on average (rate {self.sample_rate:.4g})",
            "noise multiplier": f"{self.noise_multiplier:.4g}",
            "clipping": clipping.to_dict(self.clipping)["name"],
        }
        return facts_table("Plan of a private run: nothing in it depends on the records", facts)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with the version of its format; without a unit, it is a record."""
        return {
            "format": FORMAT,
            "budget": self.budget.as_dict(),
            "size": self.size,
            "sample_rate": self.sample_rate,
            "steps": self.steps,
            "noise_multiplier": self.noise_multiplier,
            "clipping": clipping.to_dict(self.clipping),
            "cost": {"epsilon": self.cost.epsilon, "delta": self.cost.delta},
            **({} if self.unit.is_record else {"unit": self.unit.to_dict()}),
            **({"public_size": True} if self.public_size else {}),
        }

    @classmethod
    def from_dict(cls, data: object) -> Plan:
        """The inverse of to_dict; needs no accountant, and nothing in the data is executed."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            found = data.get("format") if isinstance(data, dict) else data
            raise InvalidInput(
                f"the plan's format is {found!r}: expected {FORMAT}. A newer dpilot may have written it."
            )
        expected = {"format", "budget", "size", "sample_rate", "steps", "noise_multiplier", "clipping", "cost"}
        if set(data) - {"unit", "public_size"} != expected:
            raise InvalidInput(f"a plan has the fields {sorted(data)}: expected {sorted(expected)}.")
        return cls(
            budget=Budget(**data["budget"]),
            size=data["size"],
            sample_rate=data["sample_rate"],
            steps=data["steps"],
            noise_multiplier=data["noise_multiplier"],
            clipping=clipping.from_dict(data["clipping"]),
            cost=Cost(**data["cost"]),
            unit=PrivacyUnit.from_dict(data.get("unit")),
            public_size=bool(data.get("public_size")),
        )

    def to_json(self) -> str:
        """One JSON document that reads back bit for bit."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The inverse of to_json."""
        try:
            return cls.from_dict(json.loads(text))
        except (json.JSONDecodeError, TypeError) as problem:
            raise InvalidInput(f"the plan is not what to_json wrote ({problem}).") from None


def _rate(size: int, batch_size: float | None, sample_rate: float | None) -> float:
    if (batch_size is None) == (sample_rate is None):
        raise InvalidInput("expected one of batch_size and sample_rate.")
    if sample_rate is not None:
        return _validate.rate("It is batch_size / size.", sample_rate=sample_rate)
    batch = _validate.positive(batch_size=batch_size)
    if batch > size:
        _validate.refuse("batch_size", batch_size, f"at most the size, {size}", "Lower it, or declare the true size.")
    return batch / size


def _steps(rate: float, epochs: float | None, steps: int | None) -> int:
    if (epochs is None) == (steps is None):
        raise InvalidInput("expected one of epochs and steps.")
    if steps is not None:
        return _validate.count(steps=steps)
    return max(1, round(_validate.positive(epochs=epochs) / rate))


def _rule(chosen: str | Clipping) -> Clipping:
    rule = clipping.get(chosen) if isinstance(chosen, str) else chosen
    if len(inspect.signature(rule.clip).parameters) != 2:
        _validate.refuse("clipping", rule, "a rule that needs norms alone", "clipping.names() lists them.")
    return rule
