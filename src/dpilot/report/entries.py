"""The ledger of a run as the rows of a table, and what an entry did to the records, in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from dpilot.report.words import is_finite, number, percent, upward

_STATES: Final = {
    "planned": "paid, not begun",
    "reserved": "paid, begun and not finished",
    "committed": "paid and done",
    "settled": "done for less than was reserved",
}


class AccountRow(NamedTuple):
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
        seq=number(entry.get("seq", "")),
        purpose=number(entry.get("purpose", "")),
        part="all" if part is None else str(part),
        what=describe(entry["event"]) if "event" in entry else "",
        epsilon=_amount(cost.get("epsilon", entry.get("epsilon"))),
        delta=_amount(cost.get("delta", entry.get("delta"))),
        state=_STATES.get(state, state),
    )


def _amount(value: object) -> str:
    if value is None:
        return ""
    return upward(value, 3) if is_finite(value) else number(value)  # type: ignore[arg-type]


def describe(event: object) -> str:
    """One event, as ``privacy.events.to_dict`` writes it, in words; what is not known is shown as it stands.

    >>> step = {"type": "PoissonSampled", "rate": 0.01, "event": {"type": "Gaussian", "noise_multiplier": 1.2}}
    >>> describe({"type": "Repeated", "times": 300, "event": step})
    '300 times: on a random 1 % of the records: a sum with noise of 1.2 times the most one record can add'
    """
    if not isinstance(event, Mapping):
        return number(event)
    say = _SENTENCES.get(str(event.get("type")))
    try:
        return say(event) if say else _raw(event)
    except (KeyError, TypeError):
        return _raw(event)


def _raw(event: Mapping[str, Any]) -> str:
    return json.dumps(event, default=str)


def _all(event: Mapping[str, Any]) -> str:
    return "; then ".join(describe(each) for each in event["events"]) or "nothing"


def _selection(event: Mapping[str, Any]) -> str:
    mean = number(event["mean_trials"])
    return f"the best of a secret number of trials, {mean} on average; each: {describe(event['event'])}"


_SENTENCES = {
    "Gaussian": lambda e: f"a sum with noise of {number(e['noise_multiplier'])} times the most one record can add",
    "PoissonSampled": lambda e: f"on a random {percent(e['rate'])} of the records: {describe(e['event'])}",
    "Repeated": lambda e: f"{number(e['times'])} times: {describe(e['event'])}",
    "Composed": _all,
    "OneOf": lambda e: "one of these, it is not told which: " + " | ".join(describe(each) for each in e["events"]),
    "PureDP": lambda e: f"one release of epsilon {number(e['epsilon'])}",
    "ExponentialMechanism": lambda e: f"one noisy choice of epsilon {number(e['epsilon'])}",
    "ApproxDP": lambda e: f"one release of epsilon {number(e['epsilon'])}, delta {number(e['delta'])}",
    "RepeatAndSelect": _selection,
}
