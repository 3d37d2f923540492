"""From intent to receipt: admit a commitment, begin its stages, book how they ended."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from decimal import Decimal
from typing import Final

from dpilot.errors import BudgetExceeded, InvalidInput, LedgerError
from dpilot.privacy.amounts import Price
from dpilot.privacy.events import Event
from dpilot.privacy.ledger.book import Book, Page
from dpilot.privacy.ledger.folding import Body, reserve_body, settle_body, stage_body
from dpilot.privacy.ledger.history import Entry, History, Stage
from dpilot.privacy.ledger.holding import StageLock
from dpilot.privacy.ledger.pricing import find_price, refusal, settle_price
from dpilot.privacy.ranks import check_alone
from dpilot.privacy.receipt import Receipt

_OVERTAKEN: Final = 3


def admit(book: Book, stages: Sequence[Stage], delta: Decimal | None) -> int:
    """Write the commitment of ``stages`` and return its row, or raise BudgetExceeded and write nothing."""
    with _price_and_lock(book, stages, delta) as (page, price):
        return page.append("reserve", reserve_body(stages, price, begun=False))


def spend(book: Book, stage: Stage, delta: Decimal | None) -> StageLock:
    """Write the commitment of one stage that begins at once, and hold it; or raise BudgetExceeded and write nothing."""
    with ExitStack() as undo:
        with _price_and_lock(book, (stage,), delta) as (page, price):
            seq = page.append("reserve", reserve_body((stage,), price, begun=True))
            held = StageLock(book.path, seq, 0)
            undo.callback(held.release)
        undo.pop_all()
    return held


def begin(book: Book, stage: Stage, seq: int | None = None) -> StageLock:
    """Write that a planned stage begins (of row ``seq``, or of any), and hold it. Each begins once."""
    check_alone()
    with ExitStack() as undo:
        with book.page() as page:
            held = StageLock(book.path, *_find_planned(page.history, stage, seq))
            undo.callback(held.release)
            page.append("begin", stage_body(held.seq, held.place))
        undo.pop_all()
    return held


def resume(book: Book, seq: int, place: int, drawn: Event | None) -> tuple[StageLock, Event]:
    """Write that an interrupted stage goes on, and hold it; its event. LedgerError while somebody holds it."""
    check_alone()
    with ExitStack() as undo:
        with book.page() as page:
            entry = _find_interrupted(page.history, seq, place)
            Receipt(entry.event, drawn=drawn)  # refuses what was never reserved, before anything is written
            held = StageLock(book.path, seq, place, again=True)
            undo.callback(held.release)
            page.append("resume", stage_body(seq, place))
        undo.pop_all()
    return held, entry.event


@contextmanager
def run_stage(
    book: Book, held: StageLock, event: Event, *, resumed: bool = False, drawn: Event | None = None
) -> Iterator[Receipt]:
    """The receipt of a stage that is on disk; on leaving without an exception its end is booked.

    A forked child that leaves the body books nothing: the stage is its parent's. A ``resumed`` stage is not settled:
    this process did not see what was released before.
    """
    settled: list[Body] = []

    def agree(smaller: Event, begun: bool) -> None:
        amount = settle_price(book.history(), held.seq, held.place, smaller, begun)
        settled.append(settle_body(held.seq, held.place, smaller, amount))

    receipt = Receipt(event, drawn=drawn, agree=None if resumed else agree)
    try:
        with closing(receipt):
            yield receipt
        if held.own:
            _finish(book, held, settled[-1] if settled else None)
    finally:
        held.release()


@contextmanager
def _price_and_lock(book: Book, stages: Sequence[Stage], delta: Decimal | None) -> Iterator[tuple[Page, Price]]:
    """The right to write ``stages``, and their price; or BudgetExceeded.

    Finding the price takes long, so it is done before the lock is taken, and kept only if nobody spent in between:
    shares of delta depend on what was spent. Who is overtaken again and again finds the price under the lock.
    """
    check_alone()
    for _ in range(_OVERTAKEN):
        history = book.history()
        price = _price(history, stages, delta)
        with book.page() as page:
            if page.history.same_spending(history):
                yield page, price
                return
    with book.page() as page:
        yield page, _price(page.history, stages, delta)


def _price(history: History, stages: Sequence[Stage], delta: Decimal | None) -> Price:
    price, fits = find_price(history, stages, delta)
    if not fits:
        raise BudgetExceeded(refusal(history, stages, price))
    return price


def _finish(book: Book, held: StageLock, settled: Body | None) -> None:
    """What was released stays released and paid, so a disk that fails only now must not lose the result."""
    try:
        with book.page() as page:
            page.append("settle" if settled else "commit", settled or stage_body(held.seq, held.place))
    except LedgerError as problem:
        warnings.warn(
            f"the end of row {held.seq} was not booked, it stays spent as it is: {problem} If the disk is well, a "
            "second holder may have existed, who resumed or ended the stage: then more may be released than was paid.",
            RuntimeWarning,
            stacklevel=2,
        )
    else:
        held.remove()


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
