"""A row of the ledger, and the chain that ties each row to all before it.

hash = SHA-256 of canonical JSON [seq, kind, key, time, body, previous hash]
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from dpilot.errors import LedgerError

FORMAT: Final = 1
NOTHING_BEFORE: Final = "0" * 64


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One line of the ledger. ``seq`` alone orders rows; ``time`` is only shown, so a clock may be wrong."""

    seq: int
    kind: str
    key: str
    time: str
    body: str
    previous: str
    hash: str

    def content(self) -> dict[str, Any]:
        """The body as data."""
        data = json.loads(self.body)
        if not isinstance(data, dict):
            raise LedgerError(f"row {self.seq} holds {type(data).__name__}: expected an object. The file was altered.")
        return data


def canonical(data: Any) -> str:
    """One spelling for one value: sorted keys, no spaces, ASCII only."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)


def next_row(before: Sequence[LedgerRow], kind: str, body: Mapping[str, Any]) -> LedgerRow:
    """The row that follows ``before``, with a key of its own: a second attempt is a second spend."""
    previous = before[-1].hash if before else NOTHING_BEFORE
    fields = (len(before), kind, secrets.token_hex(16), datetime.now(UTC).isoformat(timespec="seconds"))
    text = canonical(body)
    return LedgerRow(*fields, text, previous, _digest(*fields, text, previous))


def check_chain(rows: Sequence[LedgerRow]) -> None:
    """Raise LedgerError at the first row that was altered, removed, added or moved."""
    previous = NOTHING_BEFORE
    for place, row in enumerate(rows):
        right = _digest(row.seq, row.kind, row.key, row.time, row.body, row.previous)
        if row.seq != place or row.previous != previous or row.hash != right:
            raise LedgerError(
                f"row {place} of the ledger was altered, removed or moved: its hash does not follow from the rows "
                "before it. Restore the file from a copy; what it says now cannot be relied on."
            )
        previous = row.hash


def _digest(seq: int, kind: str, key: str, time: str, body: str, previous: str) -> str:
    return hashlib.sha256(canonical([seq, kind, key, time, body, previous]).encode("ascii")).hexdigest()
