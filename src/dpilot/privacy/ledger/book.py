"""A store that is known to hold one particular ledger, read as history."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dpilot.errors import LedgerError
from dpilot.privacy.ledger.chain import LedgerRow
from dpilot.privacy.ledger.folding import Body, fold, follow
from dpilot.privacy.ledger.history import History
from dpilot.privacy.ledger.store import Appender, Store


class Page:
    """The history under the write lock, and the right to add to it."""

    def __init__(self, history: History, appender: Appender) -> None:
        self.history = history
        self._appender = appender

    def append(self, kind: str, body: Body) -> int:
        """Add a row and return its number; refuse one that does not follow, after which no row could be read."""
        row = self._appender.append(kind, body)
        self.history = follow(self.history, row)
        return row.seq


@dataclass(frozen=True, slots=True)
class Book:
    """The ledger called ``identity`` in ``store``; if the file was exchanged for another ledger, it says so."""

    store: Store
    identity: str

    @classmethod
    def of(cls, store: Store) -> Book:
        """The ledger that is there now."""
        return cls(store, fold(store.rows()).identity)

    @property
    def path(self) -> Path:
        return self.store.path

    def rows(self, *, thorough: bool = False) -> tuple[LedgerRow, ...]:
        """All rows, checked."""
        rows = self.store.rows(thorough=thorough)
        self._same(fold(rows))
        return rows

    def head(self) -> str:
        """``count:hash`` of the last row."""
        last = self.rows()[-1]
        return f"{last.seq + 1}:{last.hash}"

    def history(self) -> History:
        """What the rows say now."""
        return self._same(fold(self.store.rows()))

    @contextmanager
    def page(self) -> Iterator[Page]:
        """Write alone. On leaving, what was appended is on disk; on an exception nothing is."""
        with self.store.transaction() as appender:
            yield Page(self._same(fold(appender.rows)), appender)

    def _same(self, history: History) -> History:
        if history.identity != self.identity:
            raise LedgerError(f"{self.path} holds another ledger now than when it was opened: open it again.")
        return history
