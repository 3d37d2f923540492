"""Paying for a run: in the ledger that was given, or in one of the plan's own, before the first record is read."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from dpilot.errors import InvalidInput, LedgerError
from dpilot.keys import KEY_BYTES, Chain
from dpilot.mechanism import Draws
from dpilot.privacy.budget import Cost
from dpilot.privacy.events import ApproxDP, Event, Repeated
from dpilot.privacy.ledger import Committed, Ledger, as_ledger
from dpilot.privacy.ledger.history import Entry
from dpilot.privacy.notices import warn_unledgered
from dpilot.privacy.receipt import Receipt
from dpilot.privacy.unit import PrivacyUnit
from dpilot.sampling import PoissonSampler
from dpilot.train.plan import Plan
from dpilot.train.ranks import ALONE, Ranks

LEDGER = "ledger"
Paying = Ledger | Committed | str | os.PathLike[str] | None


@dataclass(frozen=True, slots=True)
class Purpose:
    """What the ledger is told the run is for, and on which records."""

    text: str = "training"
    part: str | None = None
    split: str | None = None


@dataclass(frozen=True, slots=True)
class Payment:
    """A run's place in a ledger, and the receipt its releases are drawn from."""

    receipt: Draws
    ledger: Ledger | Committed
    seq: int
    stage: int

    @property
    def cost(self) -> Cost:
        """What this run alone costs, as the ledger prices it."""
        return _entry(self.ledger, self.seq, self.stage).cost

    @property
    def left(self) -> float:
        """The epsilon that is left of the ledger's budget; nothing where all was committed beforehand."""
        return self.ledger.remaining().epsilon if isinstance(self.ledger, Ledger) else 0.0


@dataclass(frozen=True, slots=True)
class PaidElsewhere:
    """What another rank than the one that paid knows of it: nothing can be drawn here."""

    cost: Cost
    left: float
    note: str
    event: Event
    ledger: None = None

    @property
    def receipt(self) -> Draws:
        nothing = Receipt(self.event)
        nothing.close()
        return nothing


@contextmanager
def pay_once(
    ranks: Ranks, plan: Plan, pay_here: Callable[[], AbstractContextManager[Payment]]
) -> Iterator[Payment | PaidElsewhere]:
    """Rank 0 pays, and runs the body inside its payment; the others run it once they know that it has."""
    with ExitStack() as stack:
        if ranks.leads:
            with ranks.spend():
                paid = stack.enter_context(pay_here())
            ranks.once(lambda: PaidElsewhere(paid.cost, paid.left, note(plan, paid), plan.event))
            yield paid
        else:
            yield ranks.once(refuse_to_pay)


def refuse_to_pay() -> NoReturn:
    """What another rank than the first does where it would pay."""
    raise InvalidInput("rank 0 alone pays: expected to be told of it.")


def own_ledger(plan: Plan, folder: Path | None, data_id: str | None) -> Ledger:
    """A ledger of the plan's own budget, for this run alone: in its folder, or in one that lasts while it is held.

    A PrivacyWarning says that nothing else is counted there.
    """
    warn_unledgered(plan.budget)
    home = Path(tempfile.mkdtemp(prefix="dpilot-")) if folder is None else folder
    home.mkdir(parents=True, exist_ok=True)
    name = data_id or "the data of this run"
    ledger = Ledger.open(home / LEDGER, dataset=name, budget=plan.budget, mode="precommitted", unit=plan.unit.name)
    if folder is None:
        weakref.finalize(ledger, shutil.rmtree, home, ignore_errors=True)
    return ledger


def open_ledger(ledger: Paying, plan: Plan, data_id: str | None) -> Ledger | Committed | None:
    """The ledger to pay in; one at a path is reopened or, where there is none, made for the plan's budget.

    Edge cases:
        a new ledger    is named by ``data_id``, or by its file
        another data set's ledger, where both are named    refused
        a ledger, or a commitment, for another unit than the plan's    refused
    """
    book = as_ledger(ledger, plan.budget, data_id, plan.unit) if isinstance(ledger, str | os.PathLike) else ledger
    check_data(book, data_id)
    check_unit(book, plan)
    return book


def check_unit(ledger: Ledger | Committed | None, plan: Plan) -> None:
    """Refuse a ledger for another unit than the plan's, and a commitment that was made for another unit or cap."""
    if isinstance(ledger, Ledger):
        ledger.check_unit(plan.unit)
    elif ledger is not None and ledger.unit != plan.unit:
        raise InvalidInput(
            f"the plan protects {plan.unit}, and the commitment was made for {ledger.unit}: expected one unit and cap. "
            "Commit for the unit of the plan."
        )


def check_data(ledger: Ledger | Committed | None, data_id: str | None) -> None:
    """Refuse the ledger of another data set, where both are named."""
    if data_id is not None and isinstance(ledger, Ledger) and ledger.dataset != data_id:
        raise LedgerError(
            f"the ledger is that of data set {ledger.dataset!r}, and the run is on {data_id!r}: one data set has one "
            "ledger. Open the ledger of this data set."
        )


def price(plan: Plan, *, own: bool) -> Event:
    """What the ledger is asked to write: the plan's event or, where no accountant is installed, its certified cost."""
    try:
        import dp_accounting  # noqa: F401
    except ImportError:
        return ApproxDP(plan.cost.epsilon, plan.cost.delta) if own else plan.event
    return plan.event


@contextmanager
def pay(plan: Plan, ledger: Ledger | Committed, event: Event, purpose: Purpose) -> Iterator[Payment]:
    """Reserve ``event``, then run the body; leaving commits, an exception or a crash leaves it spent."""
    _check_event(plan, event)
    check_unit(ledger, plan)
    committed = _commitment(plan, ledger, event, purpose)
    with committed.reserve(event, purpose=purpose.text, part=purpose.part, split=purpose.split) as receipt:
        begun = [
            e for e in committed.entries() if e.state == "reserved" and (e.purpose, e.event) == (purpose.text, event)
        ]
        yield Payment(_receipt(plan, event, receipt, 0), ledger, committed.seq, begun[-1].stage)


@contextmanager
def resume_payment(plan: Plan, ledger: Ledger, seq: int, stage: int, taken: int) -> Iterator[Payment]:
    """Continue an interrupted run after ``taken`` steps without paying again: only for an exact replay."""
    event = _entry(ledger, seq, stage).event
    _check_event(plan, event)
    drawn = Repeated(plan.step_event, taken) if taken and event == plan.event else None
    with ledger.resume(seq, stage, drawn=drawn) as receipt:
        yield Payment(_receipt(plan, event, receipt, taken), ledger, seq, stage)


def is_interrupted(ledger: Ledger, seq: int, stage: int) -> bool:
    """Whether the run's entry still waits to be finished."""
    return _entry(ledger, seq, stage).state == "reserved"


def note(plan: Plan, paid: Payment | PaidElsewhere) -> str:
    """How the price was found, in one sentence."""
    if isinstance(paid, PaidElsewhere):
        return paid.note
    if _entry(paid.ledger, paid.seq, paid.stage).event == plan.event:
        return "priced by the ledger's accountant"
    return "priced at the cost that the plan was certified for when it was made"


def _check_event(plan: Plan, event: Event) -> None:
    """Refuse an entry that is not the plan's: its certified cost stands in only where no accountant is installed."""
    if event not in (plan.event, price(plan, own=True)):
        raise LedgerError(
            f"the ledger's entry is for {event}, and the plan is {plan.event}: expected the plan that was paid, and "
            "the accountant to be as it was then. Start a new run: it is a new spend."
        )


def _receipt(plan: Plan, event: Event, receipt: Receipt, taken: int) -> Receipt:
    """The ledger's receipt, or one of the plan's event where its certified cost was paid instead."""
    if event == plan.event:
        return receipt
    return Receipt(plan.event, drawn=Repeated(plan.step_event, taken) if taken else None)


def _commitment(plan: Plan, ledger: Ledger | Committed, event: Event, purpose: Purpose) -> Committed:
    """The commitment to pay in; a new one where deltas are added up is priced at the delta the plan was made for."""
    if isinstance(ledger, Committed):
        return ledger
    if ledger.mode == "precommitted" and ledger.entries():
        made = ledger.committed()
        check_unit(made, plan)
        return made
    share = plan.budget.delta if ledger.bound == "basic" else None
    return ledger.commit([(purpose.text, event, purpose.part, purpose.split)], delta=share, unit=plan.unit)


def _entry(ledger: Ledger | Committed, seq: int, stage: int) -> Entry:
    for entry in ledger.entries():
        if (entry.seq, entry.stage) == (seq, stage):
            return entry
    raise LedgerError(f"the ledger has no stage {stage} in row {seq}: expected the one this run was paid in.")


class PlanUse:
    """One use of a plan: its sampler, and whether its price is on disk so that records may be read."""

    __slots__ = ("form", "key", "paid", "ranks", "rehearse", "sampler", "unit")

    def __init__(self, plan: Plan, state: Chain | None = None, unit: PrivacyUnit | None = None) -> None:
        self.sampler = PoissonSampler(plan.sample_rate, plan.steps, state=state)
        self.paid = False
        self.unit = unit or plan.unit  # of the batches: the plan's, or that of a loader with ids
        self.key = self.sampler.state.generator("units").bytes(KEY_BYTES)  # by which rows of a unit are chosen
        self.ranks: Ranks = ALONE
        self.form: Any = None  # of the records, where whoever takes the steps was given an example
        self.rehearse: weakref.WeakMethod[Callable[[Any], None]] | None = None  # theirs, where they were not

    def rewind(self) -> PoissonSampler:
        """A sampler that issues again what was issued and never claimed; batches still on their way are void."""
        old = self.sampler
        self.sampler = PoissonSampler(old.rate, old.steps, state=old.state)
        return self.sampler


_USES: dict[int, PlanUse] = {}


def use_of(plan: Plan) -> PlanUse:
    """The plan's current use; the first to ask begins one."""
    if id(plan) not in _USES:
        _USES[id(plan)] = PlanUse(plan)
        weakref.finalize(plan, _USES.pop, id(plan), None)
    return _USES[id(plan)]


def check_unused(plan: Plan, *, own_ledger: bool) -> None:
    """Refuse a second use of a plan that brings its own ledger: two runs would each claim to be all that happened."""
    if own_ledger and id(plan) in _USES and _USES[id(plan)].paid:
        raise InvalidInput(
            "the plan was used already: expected a plan for each run, as its ledger counts one. Pass one ledger "
            "to both runs, and they share its budget."
        )


def begin_use(plan: Plan, state: Chain | None = None) -> PlanUse:
    """The use whose price was just paid: the one a loader waits for, or a new one (or one with given coins)."""
    waiting = use_of(plan)
    if waiting.paid or state is not None:
        waiting = _USES[id(plan)] = PlanUse(plan, state, waiting.unit)
    waiting.paid = True
    return waiting
