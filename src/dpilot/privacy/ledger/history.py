"""What the rows say, as values: the terms of row 0, the commitments, and the state of each stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, ClassVar, Final

from dpilot import _validate
from dpilot.errors import InvalidInput, LedgerError
from dpilot.privacy import _decimals, events, filters
from dpilot.privacy.budget import Budget, Cost
from dpilot.privacy.events import Event
from dpilot.privacy.filters import Amount, Bound, Cell, Charge, Price
from dpilot.privacy.unit import RECORD, PrivacyUnit

DEFAULT_SPLIT: Final = "main"


@dataclass(frozen=True, slots=True)
class Stage:
    """One named piece of a commitment: ``event`` on the records of ``part`` (of ``split``), or on all of them.

    A part without a split is a part of "main", then the ledger's only split.
    """

    purpose: str
    event: Event
    part: str | None = None
    split: str | None = None

    def __post_init__(self) -> None:
        _validate.line(purpose=self.purpose)
        events.check_event(self.event)
        if self.part is None and self.split is not None:
            raise InvalidInput(f"split is {self.split!r} without a part: expected the part of the split. Name both.")
        if self.part is not None:
            _validate.line(part=self.part)
            object.__setattr__(self, "split", _validate.line(split=DEFAULT_SPLIT if self.split is None else self.split))

    @property
    def cell(self) -> Cell:
        return None if self.part is None or self.split is None else (self.split, self.part)


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of ``Ledger.entries()``: a stage, its own cost, and where it stands.

    ``state``: "planned" (paid, not begun), "reserved" (begun and not finished, or crashed: spent in full),
    "committed", or "settled" (for ``event``, less than was reserved). Costs of entries need not add up to the total:
    stages of one commitment are composed, and disjoint parts share.
    """

    seq: int
    stage: int
    time: str
    purpose: str
    part: str | None
    split: str | None
    event: Event
    cost: Cost
    state: str
    bound_used: str
    unit: PrivacyUnit = RECORD

    COLUMNS: ClassVar = ("row", "purpose", "part", "event", "epsilon", "delta", "state", "bound", "unit")

    def cells(self) -> tuple[str, ...]:
        """The entry as people read it: a text for each of ``COLUMNS``."""
        place = "all" if self.part is None else f"{self.part} of {self.split}"
        cost = (f"{self.cost.epsilon:.4g}", f"{self.cost.delta:.3g}")
        return (
            f"{self.seq}",
            self.purpose,
            place,
            repr(self.event),
            *cost,
            self.state,
            self.bound_used,
            str(self.unit),
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON; without a unit, it is a record."""
        names = ("seq", "stage", "time", "purpose", "part", "split", "state", "bound_used")
        data = {name: getattr(self, name) for name in names}
        cost = {"epsilon": self.cost.epsilon, "delta": self.cost.delta}
        unit = {} if self.unit.is_record else {"unit": self.unit.to_dict()}
        return {**data, "event": events.to_dict(self.event), "cost": cost, **unit}


@dataclass(frozen=True, slots=True)
class Extension:
    """An extend row: from here on ``budget`` is the total, for ``reason``."""

    seq: int
    time: str
    budget: Budget
    reason: str

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {"seq": self.seq, "time": self.time, "budget": self.budget.as_dict(), "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Grant:
    """A grant row: the user ``to`` may "read", or "spend" up to the epsilon ``cap``, if there is one."""

    to: str
    role: str
    cap: float | None = None

    def __post_init__(self) -> None:
        _validate.line(to=self.to)
        _validate.one_of(("read", "spend"), role=self.role)
        if self.cap is not None:
            _validate.positive(cap=self.cap)
            if self.role == "read":
                raise InvalidInput(f"cap is {self.cap:g} for a reader: expected the role spend, or no cap.")


@dataclass(frozen=True, slots=True)
class Commitment:
    """A reserve row, with what later rows made of it.

    ``states`` are those of entries, and "resumed": reserved, and what was released before is not known.
    """

    seq: int
    time: str
    stages: tuple[Stage, ...]
    price: Price
    states: tuple[str, ...]
    unit: PrivacyUnit = RECORD
    by: str | None = None
    settled: Mapping[int, tuple[Event, Amount]] = field(default_factory=dict)

    def charges(self) -> tuple[Charge, ...]:
        """What counts now: the settled amount where there is one (a settled stage has a charge of its own)."""
        return tuple(
            Charge(self.settled[place][1], charge.cell) if place in self.settled else charge
            for place, charge in enumerate(self.price.charges)
        )


@dataclass(frozen=True, slots=True)
class History:
    """The ledger as of its last row."""

    identity: str
    dataset: str
    mode: str
    bound_name: str
    order: float | None
    budget: Budget
    unit: str = RECORD.name
    commitments: tuple[Commitment, ...] = ()
    extensions: tuple[Extension, ...] = ()
    grants: Mapping[str, Grant] = field(default_factory=dict)
    moved_to: str | None = None
    departed: bool = False

    @property
    def bound(self) -> Bound:
        match self.bound_name:
            case "basic":
                return filters.BasicFilter()
            case "rdp" if self.order is not None:
                return filters.RenyiFilter(self.order)
            case "gdp":
                return filters.GdpFilter()
            case "pld":
                return filters.PldFilter(_decimals.to_decimal(self.budget.delta))
        raise LedgerError(f"row 0 names the bound {self.bound_name!r}: expected one this dpilot knows. Update dpilot.")

    @property
    def is_closed(self) -> bool:
        """Whether nothing more is admitted: a precommitted ledger takes one commitment."""
        return self.mode == "precommitted" and bool(self.commitments)

    def check_here(self) -> None:
        """Refuse to go on in a ledger that was moved."""
        if self.moved_to is not None:
            raise LedgerError(f"the ledger was moved to {self.moved_to}: nothing more is admitted here. Name it there.")

    def total(self, more: Iterable[Charge] = ()) -> Amount:
        """Everything written, and ``more``."""
        return filters.total([*self._charges(), *more])

    def admits(self, price: Price, by: str | None = None) -> bool:
        """Whether the budget holds with ``price`` added, and the cap of who spends."""
        return self.bound.fits(self.total(price.charges), self.budget) and (
            (cap := self.cap(by)) is None or self.bound.fits(self.total_by(by, price.charges), cap)
        )

    def cap(self, by: str | None) -> Budget | None:
        """What the user ``by`` may spend in all, where a grant says so."""
        grant = self.grants.get(by) if by is not None else None
        return None if grant is None or grant.cap is None else Budget(grant.cap, self.budget.delta)

    def total_by(self, by: str | None, more: Iterable[Charge] = ()) -> Amount:
        """What the user ``by`` has written, and ``more``."""
        return filters.total([*(c for each in self.commitments if each.by == by for c in each.charges()), *more])

    def same_spending(self, other: History) -> bool:
        """Whether nothing was spent or settled between the two, and nobody was given another cap."""
        return self._charges() == other._charges() and self.grants == other.grants

    def shares(self, cells: set[Cell]) -> tuple[Decimal | None, ...]:
        """The deltas to try, in turn, for the next commitment in ``cells``; only bound "basic" gives out shares.

        None (what the events declare, if they all do), then left / (k + 2) after k commitments, then all that is left.
        Where all take their share, the k-th gets delta / (k (k + 1)), which sums to delta and never runs out.
        """
        if self.bound_name != "basic":
            return (None,)
        cell = cells.pop() if len(cells) == 1 else None
        near = filters.total(charge for charge in self._charges() if _meets(charge.cell, cell))
        left = _decimals.DOWN.subtract(_decimals.to_decimal(self.budget.delta), near.delta)
        if left <= 0:
            return (None,)
        # left_k = delta / (k + 1) after k shares, as left (1 - 1/(k + 2)) = left (k + 1)/(k + 2): the shares telescope.
        # tests/privacy/test_ledger_bounds.py, test_delta_lasts_for_any_number_of_commitments.
        share = _decimals.DOWN.divide(left, Decimal(len(self.commitments) + 2))
        return None, _decimals.truncate(share), left

    def check_splits(self, stages: Iterable[Stage]) -> None:
        """Refuse parts of the unnamed split "main" beside parts of named ones: it may be any of those, or another."""
        asked = {stage.split for stage in stages if stage.split is not None}
        names = asked | {stage.split for each in self.commitments for stage in each.stages if stage.split is not None}
        if asked and DEFAULT_SPLIT in names and len(names) > 1:
            raise InvalidInput(
                f"parts of the splits {sorted(names)} meet in one ledger: expected parts without a split, which are of "
                f'one split called "{DEFAULT_SPLIT}", or parts of named splits, not both. Pass split=split.id with '
                "every part."
            )

    def check_unit(self, unit: PrivacyUnit) -> None:
        """Refuse a commitment for another unit than the ledger's: neither total would be of one kind of neighbours."""
        if unit.name != self.unit:
            raise InvalidInput(
                f"the unit is {unit.name!r}, and the ledger of {self.dataset!r} was made for {self.unit!r}: a total "
                f"protects one kind of unit. {_remedy(unit.name, self.unit)}, or name another ledger. Nothing was "
                "written."
            )

    def entries(self) -> tuple[Entry, ...]:
        """One for each stage of each commitment, in order."""
        return tuple(self._entry(each, place) for each in self.commitments for place in range(len(each.stages)))

    def cost(self, amount: Amount) -> Cost:
        """An amount as (epsilon, delta), rounded up."""
        shown = self.bound.cost(amount, self.budget)
        return Cost(_decimals.above(shown.loss), _decimals.above(shown.delta))

    def total_cost(self) -> Cost:
        """The total so far, rounded up."""
        return self.cost(self.total())

    def rest(self) -> Cost:
        """What is left, rounded down."""
        if self.is_closed:
            return Cost(0.0, 0.0)
        used = self.bound.cost(self.total(), self.budget)
        epsilon = _decimals.DOWN.subtract(_decimals.to_decimal(self.budget.epsilon), used.loss)
        delta = _decimals.to_decimal(self.budget.delta)
        if self.bound_name == "basic":
            delta = _decimals.DOWN.subtract(delta, used.delta)
        return Cost(_decimals.below(epsilon), _decimals.below(delta))

    def _charges(self) -> list[Charge]:
        return [charge for each in self.commitments for charge in each.charges()]

    def _entry(self, commitment: Commitment, place: int) -> Entry:
        stage = commitment.stages[place]
        event, amount = commitment.settled.get(place, (stage.event, commitment.price.stages[place]))
        return Entry(
            seq=commitment.seq,
            stage=place,
            time=commitment.time,
            purpose=stage.purpose,
            part=stage.part,
            split=stage.split,
            event=event,
            cost=self.cost(amount),
            state="reserved" if commitment.states[place] == "resumed" else commitment.states[place],
            bound_used=commitment.price.bound_used,
            unit=commitment.unit,
        )


def _remedy(asked: str, fixed: str) -> str:
    """What makes a fit one of the ledger's unit."""
    if fixed == RECORD.name:
        return f"Make the ledger for unit={asked!r} before the first fit"
    return f"Fit with unit={fixed!r}"


def _meets(cell: Cell, other: Cell) -> bool:
    """Whether one record can be in both cells: parts of one split are disjoint."""
    return cell is None or other is None or cell[0] != other[0] or cell == other
