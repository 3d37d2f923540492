"""From intent to receipt: price a commitment, admit it, begin its stages, book how they ended."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import replace
from decimal import Decimal

from dpilot.errors import BudgetExceeded, InvalidInput, LedgerError
from dpilot.privacy._decimals import DOWN
from dpilot.privacy.events import Event
from dpilot.privacy.filters import Amount, Charge, Price
from dpilot.privacy.ledger.book import Body, Book, Page, reserve_body, settle_body, stage_body
from dpilot.privacy.ledger.history import Entry, History, Stage
from dpilot.privacy.ledger.stage_lock import StageLock
from dpilot.privacy.receipt import Receipt, check_alone
from dpilot.privacy.unit import RECORD, PrivacyUnit


class Committed:
    """The stages of the commitment in row ``seq``, each of which runs once.

    It can stand in for a ledger where only ``reserve`` is called: a trainer does not know the difference.

    With ``repeat`` it is that of a process which goes on with an interrupted run by an EXACT replay of all of it: same
    noise, same batches. A stage that began is resumed, and one that ended hands out its receipt again, inside the
    context that ``repeat()`` opens, in which only releases that were made before may be made.
    """

    def __init__(self, book: Book, seq: int, repeat: Callable[[], AbstractContextManager[None]] | None = None) -> None:
        self.seq = seq
        self._book = book
        self._repeat = repeat
        self._repeated: set[int] = set()

    def entries(self) -> tuple[Entry, ...]:
        """The entries of these stages."""
        return tuple(entry for entry in self._book.history().entries() if entry.seq == self.seq)

    @property
    def unit(self) -> PrivacyUnit:
        """Whom the commitment protects, with the cap it was made for."""
        return self.entries()[0].unit

    def head(self) -> str:
        """``Ledger.head`` of the ledger that it is in."""
        return self._book.head()

    @contextmanager
    def stage(self, purpose: str) -> Iterator[Receipt]:
        """Begin the next planned stage called ``purpose``."""
        waiting = [entry for entry in self.entries() if entry.purpose == purpose and self._waits(entry)]
        if not waiting:
            raise BudgetExceeded(f"no stage {purpose!r} is waiting: it was not committed, or has begun already.")
        entry = waiting[0]
        with self.reserve(entry.event, purpose=purpose, part=entry.part, split=entry.split) as receipt:
            yield receipt

    @contextmanager
    def reserve(
        self, event: Event, *, purpose: str, part: str | None = None, split: str | None = None
    ) -> Iterator[Receipt]:
        """Begin the planned stage that is exactly this; on disk before the body runs."""
        stage = Stage(purpose, event, part, split)
        if (begun := self._find_begun(stage)) is not None:
            self._repeated.add(begun.stage)
            with self._run_again(begun) as receipt:
                yield receipt
            return
        lock = begin(self._book, stage, self.seq)
        self._repeated.add(lock.place)
        with run_stage(self._book, lock, event) as receipt:
            yield receipt

    def _find_begun(self, stage: Stage) -> Entry | None:
        """In a replay, the entry of this stage if it began and this process has not come to it."""
        entries = () if self._repeat is None else self.entries()
        begun = (each for each in entries if each.state != "planned" and self._waits(each))
        return next((each for each in begun if _stage_of(each) == stage), None)

    def _waits(self, entry: Entry) -> bool:
        """Whether the stage has not begun; in a replay, whether this process has not come to it."""
        return entry.state == "planned" if self._repeat is None else entry.stage not in self._repeated

    @contextmanager
    def _run_again(self, entry: Entry) -> Iterator[Receipt]:
        assert self._repeat is not None
        if entry.state == "reserved":
            lock, event = resume(self._book, entry.seq, entry.stage, None)
            with run_stage(self._book, lock, event, resumed=True) as receipt:
                yield receipt
        else:
            with self._repeat(), closing(Receipt(entry.event)) as receipt:
                yield receipt


def _stage_of(entry: Entry) -> Stage:
    return Stage(entry.purpose, entry.event, entry.part, entry.split)


def admit(book: Book, stages: Sequence[Stage], delta: Decimal | None, unit: PrivacyUnit) -> int:
    """Write the commitment of ``stages`` and return its row, or raise BudgetExceeded and write nothing."""
    with _price_and_lock(book, stages, delta, unit) as (page, price):
        return page.append("reserve", reserve_body(stages, price, begun=False, unit=unit, by=book.user()))


def check_room(book: Book, commitments: Sequence[tuple[Sequence[Stage], Decimal | None]], unit: PrivacyUnit) -> None:
    """Raise BudgetExceeded unless all ``commitments`` would be admitted one after the other; writes nothing."""
    history, by, charges = book.history(), book.user(), tuple[Charge, ...]()
    for stages, delta in commitments:
        price, _ = find_price(history, stages, delta, unit, by)
        charges = (*charges, *price.charges)
        together = replace(price, charges=charges)
        if history.is_closed or not history.admits(together, by):
            raise BudgetExceeded(refusal(history, stages, together, by))


def spend(book: Book, stage: Stage, delta: Decimal | None, unit: PrivacyUnit) -> StageLock:
    """Write the commitment of one stage that begins at once, and hold it; or raise BudgetExceeded and write nothing."""
    with ExitStack() as undo:
        with _price_and_lock(book, (stage,), delta, unit) as (page, price):
            seq = page.append("reserve", reserve_body((stage,), price, begun=True, unit=unit, by=book.user()))
            lock = book.store.lock_stage(seq, 0)
            undo.callback(lock.release)
        undo.pop_all()
    return lock


def begin(book: Book, stage: Stage, seq: int | None = None) -> StageLock:
    """Write that a planned stage begins (of row ``seq``, or of any), and hold it. Each begins once."""
    check_alone()
    with ExitStack() as undo:
        with book.page() as page:
            lock = book.store.lock_stage(*_find_planned(page.history, stage, seq))
            undo.callback(lock.release)
            page.append("begin", stage_body(lock.seq, lock.place))
        undo.pop_all()
    return lock


def resume(book: Book, seq: int, place: int, drawn: Event | None) -> tuple[StageLock, Event]:
    """Write that an interrupted stage goes on, and hold it; its event. LedgerError while it is held."""
    check_alone()
    with ExitStack() as undo:
        with book.page() as page:
            entry = _find_interrupted(page.history, seq, place)
            Receipt(entry.event, drawn=drawn)  # refuses what was never reserved, before anything is written
            lock = book.store.lock_stage(seq, place, again=True)
            undo.callback(lock.release)
            page.append("resume", stage_body(seq, place))
        undo.pop_all()
    return lock, entry.event


@contextmanager
def run_stage(
    book: Book, lock: StageLock, event: Event, *, resumed: bool = False, drawn: Event | None = None
) -> Iterator[Receipt]:
    """The receipt of a stage that is on disk; on leaving without an exception its end is booked.

    A forked child that leaves the body books nothing: the stage is its parent's. A ``resumed`` stage is not settled:
    this process did not see what was released before.
    """
    settled: list[Body] = []

    def agree(smaller: Event, begun: bool) -> None:
        amount = settle_price(book.history(), lock.seq, lock.place, smaller, begun)
        settled.append(settle_body(lock.seq, lock.place, smaller, amount))

    receipt = Receipt(event, drawn=drawn, agree=None if resumed else agree)
    try:
        with closing(receipt):
            yield receipt
        if lock.own:
            _finish(book, lock, settled[-1] if settled else None)
    finally:
        lock.release()


@contextmanager
def _price_and_lock(
    book: Book, stages: Sequence[Stage], delta: Decimal | None, unit: PrivacyUnit
) -> Iterator[tuple[Page, Price]]:
    """The right to write ``stages``, and their price; or BudgetExceeded.

    Finding the price takes long, so it is done before the lock is taken, and kept only if nothing was spent in between:
    shares of delta depend on what was spent. Whoever is overtaken three times finds the price under the lock.
    """
    check_alone()
    for _ in range(3):
        history = book.history()
        price = _price(history, stages, delta, unit, book.user())
        with book.page() as page:
            if page.history.same_spending(history):
                yield page, price
                return
    with book.page() as page:
        yield page, _price(page.history, stages, delta, unit, book.user())


def _price(
    history: History, stages: Sequence[Stage], delta: Decimal | None, unit: PrivacyUnit, by: str | None
) -> Price:
    price, fits = find_price(history, stages, delta, unit, by)
    if not fits:
        raise BudgetExceeded(refusal(history, stages, price, by))
    return price


def _finish(book: Book, lock: StageLock, settled: Body | None) -> None:
    """What was released stays released and paid, so a disk that fails only now must not lose the result."""
    try:
        with book.page() as page:
            page.append("settle" if settled else "commit", settled or stage_body(lock.seq, lock.place))
    except LedgerError as problem:
        warnings.warn(
            f"the end of row {lock.seq} was not booked, it stays spent as it is: {problem} If the disk is well, a "
            "second holder may have existed, who resumed or ended the stage: then more may be released than was paid.",
            RuntimeWarning,
            stacklevel=2,
        )
    else:
        lock.remove()


def _find_planned(history: History, stage: Stage, seq: int | None) -> tuple[int, int]:
    for commitment in history.commitments:
        for place, planned in enumerate(commitment.stages):
            if seq in (None, commitment.seq) and planned == stage and commitment.states[place] == "planned":
                return commitment.seq, place
    raise BudgetExceeded(
        f"{stage} was not committed, or has begun already: nothing more is admitted. "
        "Commit every stage beforehand; each runs once."
    )


def _find_interrupted(history: History, seq: int, place: int) -> Entry:
    for entry in history.entries():
        if (entry.seq, entry.stage) == (seq, place) and entry.state == "reserved":
            return entry
    raise InvalidInput(f"stage {place} of row {seq} was not interrupted: expected an entry whose state is reserved.")


def find_price(
    history: History,
    stages: Sequence[Stage],
    delta: Decimal | None,
    unit: PrivacyUnit = RECORD,
    by: str | None = None,
) -> tuple[Price, bool]:
    """The first price that fits among the shares of delta to try, or the last one tried and False.

    The choice looks at the history and the events alone, never at what this commitment will release: so the deltas
    are fixed in advance of it, as the filter needs.
    """
    history.check_here()
    history.check_unit(unit)
    history.check_splits(stages)
    placed = [(stage.event, stage.cell) for stage in stages]
    shares = history.shares({stage.cell for stage in stages}) if delta is None else (delta,)
    for share in shares:
        price = history.bound.price(placed, share)
        if not history.is_closed and history.admits(price, by):
            return price, True
        if share is None and price.charges[0].amount.loss.is_finite():
            break  # what declares its cost is charged that, and no delta, unless asked
    return price, False


def refusal(history: History, stages: Sequence[Stage], price: Price, by: str | None = None) -> str:
    """Why a commitment was not admitted, in one sentence with the remedy."""
    names = ", ".join(repr(stage.purpose) for stage in stages)
    if history.is_closed:
        return f"{names} comes after the commitment of a precommitted ledger: nothing more is admitted. Open another."
    if (cap := history.cap(by)) is not None and history.bound.fits(history.total(price.charges), history.budget):
        own = history.cost(history.total_by(by))
        return (
            f"{names} does not fit the cap of {by!r}: epsilon {own.epsilon:.6g} of {cap.epsilon:g} is spent under that "
            "name. Nothing was written. Use more noise, or ask the owner for a higher cap (dpilot ledger grant)."
        )
    needed = history.bound.cost(history.total(price.charges), history.budget)
    spent = history.cost(history.total())
    return (
        f"{names} does not fit: the total would be epsilon {float(needed.loss):.6g} at delta "
        f"{float(needed.delta):.3g}, {spent.epsilon:.6g} is spent, and the budget is {history.budget}. "
        "Nothing was written. Use more noise, fewer steps, a smaller sample rate or a smaller delta, or ledger.extend "
        "with a reason."
    )


def settle_price(history: History, seq: int, place: int, event: Event, drawn: bool) -> Amount:
    """The amount for which a begun stage may settle, or InvalidInput.

    Guarantee:
        after a first draw only sums over releases are lowered (rdp, gdp, declared epsilons): the filter is valid at
        every stopping point of those. A PLD price is one number for the whole commitment, so it is lowered before the
        first draw or not at all.
    """
    (commitment,) = (each for each in history.commitments if each.seq == seq)
    price = commitment.price
    if history.mode != "adaptive":
        raise InvalidInput("a precommitted ledger reports what was planned: a stage that stops early settles nothing.")
    if len(price.charges) != len(commitment.stages):
        raise InvalidInput("the stages of this commitment share one price: none of them settles alone.")
    if drawn and not price.additive:
        raise InvalidInput(
            'a release was drawn already, and bound "basic" prices the commitment as a whole: settle before the first '
            'draw, reserve in smaller pieces, or open the ledger with bound="rdp" or "gdp".'
        )
    reserved, stage = price.charges[place].amount, commitment.stages[place]
    found = history.bound.price([(event, stage.cell)], None).charges[0].amount
    if history.bound_name == "basic" and not drawn and not found.within(reserved):
        left = DOWN.subtract(reserved.delta, found.delta)
        found = history.bound.price([(event, stage.cell)], left).charges[0].amount
    if not found.within(reserved):
        raise InvalidInput(f"{event!r} costs more than what was reserved: expected less. Reserve it on its own.")
    return found
