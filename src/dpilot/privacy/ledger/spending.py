"""From intent to receipt: admit a commitment, begin its stages, book how they ended."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Final

from dpilot.errors import BudgetExceeded, InvalidInput, LedgerError
from dpilot.privacy.amounts import Price
from dpilot.privacy.events import Event
from dpilot.privacy.ledger.book import Book
from dpilot.privacy.ledger.folding import Body, reserve_body, settle_body, stage_body
from dpilot.privacy.ledger.history import Entry, History, Stage
from dpilot.privacy.ledger.pricing import affordable, lowered, refusal
from dpilot.privacy.receipt import Receipt

_OVERTAKEN: Final = 3


def admit(book: Book, stages: Sequence[Stage], delta: Decimal | None, *, begun: bool) -> int:
    """Write the commitment of ``stages`` and return its row, or raise BudgetExceeded and write nothing.

    Finding the price takes long, so it is done before the lock is taken, and kept only if nobody spent in between:
    shares of delta depend on what was spent. Who is overtaken again and again finds the price under the lock.
    """
    for _ in range(_OVERTAKEN):
        history = book.history()
        price = _price(history, stages, delta)
        with book.page() as page:
            if page.history.same_spending(history):
                return page.append("reserve", reserve_body(stages, price, begun=begun))
    with book.page() as page:
        return page.append("reserve", reserve_body(stages, _price(page.history, stages, delta), begun=begun))


def begin(book: Book, stage: Stage, seq: int | None = None) -> tuple[int, int]:
    """Write that a planned stage begins (of row ``seq``, or of any); where it stands. Each begins once."""
    with book.page() as page:
        for commitment in page.history.commitments:
            for place, planned in enumerate(commitment.stages):
                if seq in (None, commitment.seq) and planned == stage and commitment.states[place] == "planned":
                    page.append("begin", stage_body(commitment.seq, place))
                    return commitment.seq, place
    raise BudgetExceeded(
        f"{stage} was not committed, or has begun already: nothing more is admitted. "
        "Commit every stage beforehand; each runs once."
    )


def resume(book: Book, seq: int, place: int, drawn: Event | None) -> Event:
    """Write that an interrupted stage goes on; its event."""
    with book.page() as page:
        entry = _interrupted(page.history, seq, place)
        Receipt(entry.event, drawn=drawn)  # refuses what was never reserved, before anything is written
        page.append("resume", stage_body(seq, place))
        return entry.event


@contextmanager
def running(
    book: Book, seq: int, place: int, event: Event, *, resumed: bool = False, drawn: Event | None = None
) -> Iterator[Receipt]:
    """The receipt of a stage that is on disk; on leaving without an exception its end is booked.

    A forked child that leaves the body books nothing: the stage is its parent's. A ``resumed`` stage is not settled:
    this process did not see what was released before.
    """
    process = os.getpid()
    settled: list[Body] = []

    def agree(smaller: Event, begun: bool) -> None:
        amount = lowered(book.history(), seq, place, smaller, begun)
        settled.append(settle_body(seq, place, smaller, amount))

    receipt = Receipt(event, drawn=drawn, agree=None if resumed else agree)
    try:
        yield receipt
    finally:
        receipt.close()
    if os.getpid() == process:
        _finish(book, "settle" if settled else "commit", settled[-1] if settled else stage_body(seq, place))


def _price(history: History, stages: Sequence[Stage], delta: Decimal | None) -> Price:
    price, fits = affordable(history, stages, delta)
    if not fits:
        raise BudgetExceeded(refusal(history, stages, price))
    return price


def _finish(book: Book, kind: str, body: Body) -> None:
    """What was released stays released and paid, so a disk that fails only now must not lose the result."""
    try:
        with book.page() as page:
            page.append(kind, body)
    except LedgerError as problem:
        warnings.warn(
            f"the end of row {body['of']} was not booked, it stays spent as it is: {problem}",
            RuntimeWarning,
            stacklevel=2,
        )


def _interrupted(history: History, seq: int, place: int) -> Entry:
    for entry in history.entries():
        if (entry.seq, entry.stage) == (seq, place) and entry.state == "reserved":
            return entry
    raise InvalidInput(f"stage {place} of row {seq} was not interrupted: expected an entry whose state is reserved.")
