"""Several stages paid as one commitment, then run one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dpilot.errors import BudgetExceeded
from dpilot.privacy.events import Event
from dpilot.privacy.ledger.book import Book
from dpilot.privacy.ledger.history import Entry, Stage
from dpilot.privacy.ledger.spending import begin, run_stage
from dpilot.privacy.receipt import Receipt


class Committed:
    """The stages of the commitment in row ``seq``, each of which runs once.

    It can stand in for a ledger where only ``reserve`` is called: a trainer does not know the difference.
    """

    def __init__(self, book: Book, seq: int) -> None:
        self.seq = seq
        self._book = book

    def entries(self) -> tuple[Entry, ...]:
        """The entries of these stages."""
        return tuple(entry for entry in self._book.history().entries() if entry.seq == self.seq)

    @contextmanager
    def stage(self, purpose: str) -> Iterator[Receipt]:
        """Begin the next planned stage called ``purpose``."""
        waiting = [entry for entry in self.entries() if entry.purpose == purpose and entry.state == "planned"]
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
        held = begin(self._book, Stage(purpose, event, part, split), self.seq)
        with run_stage(self._book, held, event) as receipt:
            yield receipt
