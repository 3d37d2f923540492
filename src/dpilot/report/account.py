"""The ledger of a run as the rows of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dpilot.report import events, words

_STATES: Final = {
    "planned": "paid, not begun",
    "reserved": "paid, begun and not finished",
    "committed": "paid and done",
    "settled": "done for less than was reserved",
}


@dataclass(frozen=True, slots=True)
class AccountRow:
    """One entry, as text."""

    seq: str
    purpose: str
    part: str
    what: str
    epsilon: str
    delta: str
    state: str


def row(entry: Mapping[str, Any]) -> AccountRow:
    """An entry as ``privacy.ledger.Entry.as_dict`` writes it; what is missing is left empty."""
    cost = entry.get("cost")
    cost = cost if isinstance(cost, Mapping) else {}
    part, state = entry.get("part"), str(entry.get("state", ""))
    return AccountRow(
        seq=words.number(entry.get("seq", "")),
        purpose=words.number(entry.get("purpose", "")),
        part="all" if part is None else str(part),
        what=events.describe(entry["event"]) if "event" in entry else "",
        epsilon=_amount(cost.get("epsilon", entry.get("epsilon"))),
        delta=_amount(cost.get("delta", entry.get("delta"))),
        state=_STATES.get(state, state),
    )


def _amount(value: object) -> str:
    if value is None:
        return ""
    return words.upward(value, 3) if words.is_finite(value) else words.number(value)  # type: ignore[arg-type]
