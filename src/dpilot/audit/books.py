"""Whether a ledger's prices are right, by another accountant, and whether what runs say they did is in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from dpilot.audit.check import Check
from dpilot.errors import DpilotError, InvalidInput
from dpilot.privacy import accountant, events, lower_estimate
from dpilot.privacy.events import Composed, Event, RepeatAndSelect, leaves
from dpilot.privacy.ledger import Entry, Ledger, reopen
from dpilot.records import FIT, FitRecord
from dpilot.train.checkpoint.statement import read_statement

__all__ = ["audit_ledger"]

_ROUNDING: Final = 1e-6


def audit_ledger(ledger: Ledger | str | Path, runs: Sequence[str | Path] = ()) -> list[Check]:
    """Check the chain of ``ledger``, recompute every price by a second accountant, and look up what ``runs`` released.

    The second accountant bounds a price from both sides: an optimistic privacy loss distribution from below, which no
    true price undercuts, and Renyi divergences from above.

    Args:
        ledger: the ledger, or where it is.
        runs: folders of runs on its data set. Each of their events must be one row of the ledger, of its own; a record
            that shows scores of trials must show events that paid for them.
    """
    book = ledger if isinstance(ledger, Ledger) else reopen(ledger)
    try:
        checks = [Check("chain", True, f"{book.verify().partition(':')[0]} rows, nothing altered")]
    except DpilotError as problem:
        return [Check("chain", False, str(problem))]
    entries = book.entries()
    checks += [_check_price(entry) for entry in entries]
    checks += [_check_total(book, entries)]
    left = Counter(_key(entry.event) for entry in entries)
    for run in runs:
        checks += _check_run(Path(run), left)
    return checks


def _check_price(entry: Entry) -> Check:
    name = f"price of row {entry.seq}, {entry.purpose}"
    try:
        low = lower_estimate.epsilon(entry.event, entry.cost.delta)
        high = accountant.epsilon(entry.event, entry.cost.delta, "rdp")
    except InvalidInput as problem:
        return Check(name, None, f"no second accountant prices it ({problem})")
    held = entry.cost.epsilon >= low * (1 - _ROUNDING)
    return Check(name, held, f"epsilon {entry.cost.epsilon:.6g} is written; between {low:.6g} and {high:.6g}")


def _check_total(book: Ledger, entries: Sequence[Entry]) -> Check:
    """Whatever the filter, the total is never below what all rows of one part cost together."""
    spent = book.spent()
    named: set[tuple[str | None, str | None]] = {(e.split, e.part) for e in entries if e.part is not None}
    cells = named or {(None, None)}
    if not entries:
        return Check("total", True, "nothing was spent")
    try:
        alone = [[e.event for e in entries if e.part is None or (e.split, e.part) == cell] for cell in cells]
        low = max(lower_estimate.epsilon(Composed(each), spent.delta) for each in alone if each)
    except InvalidInput as problem:
        return Check("total", None, f"no second accountant adds it up ({problem})")
    held = spent.epsilon >= low * (1 - _ROUNDING)
    return Check("total", held, f"epsilon {spent.epsilon:.6g} is said, {low:.6g} at least")


def _check_run(folder: Path, left: Counter[str]) -> list[Check]:
    """Whether what a run states, and what its record shows, was paid in the ledger; rows are used up."""
    try:
        stated = [events.from_dict(each["event"]) for each in read_statement(folder)[0]["events"]]
    except (DpilotError, KeyError, TypeError) as problem:
        return [Check(f"run {folder.name}", False, f"says not what it released ({problem})")]
    wanted = Counter(map(_key, stated))
    missing = wanted - left
    left.subtract(wanted & left)
    unpaid = f"{missing.total()} of {wanted.total()} events are no rows of this ledger" if missing else ""
    checks = [Check(f"run {folder.name}: its events", not missing, unpaid or f"all {wanted.total()} are rows of it")]
    return checks + _check_trials(folder, stated)


def _check_trials(folder: Path, stated: Sequence[Event]) -> list[Check]:
    """A record that shows scores of trials must show a private selection, or an event for each trial and score."""
    if not (folder / FIT).exists():
        return []
    record = FitRecord.from_json((folder / FIT).read_text(encoding="utf-8"))
    shown = len(record.trials)
    if not shown:
        return []
    paid = sum(times for event in stated for _, times in leaves(event))
    selected = any(isinstance(part, RepeatAndSelect) for event in stated for part, _ in leaves(event))
    held = selected or paid > 2 * shown  # a training and a score for each, and the final run
    found = "by a private selection" if selected else f"by {paid} releases"
    return [Check(f"run {folder.name}: its trials", held, f"{shown} scores are shown, paid {found}")]


def _key(event: Event) -> str:
    return str(sorted(_flat(events.to_dict(event))))


def _flat(data: Any, name: str = "") -> list[str]:
    if isinstance(data, dict):
        return [each for key, value in data.items() for each in _flat(value, f"{name}.{key}")]
    if isinstance(data, list):
        return [each for place, value in enumerate(data) for each in _flat(value, f"{name}.{place}")]
    return [f"{name}={data!r}"]
