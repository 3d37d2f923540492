"""A ledger's rows as history: what each kind of row says, written and read in one place; and the book they are in.

| kind | says |
|---|---|
| open | row 0: data set, budget, mode, bound, the order of bound "rdp", and the unit where it is not a record |
| reserve | a commitment: its stages, its charges, whether its one stage has begun, its unit with the cap |
| begin, resume | a planned stage begins; an interrupted one goes on with an exact replay |
| commit, settle | a stage is done; it is done for less, which no stage is that was resumed |
| extend | a larger budget, with the reason |
| grant | a user of the server may read or spend, the latter up to a cap |
| move, depart, arrive | nothing more is admitted here; the ledger is elsewhere; it has come from elsewhere |

Nothing here depends on a record: events, names and declared numbers only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import dpilot
from dpilot import _validate
from dpilot.errors import InvalidInput, LedgerError
from dpilot.privacy import _decimals, events
from dpilot.privacy.budget import Budget
from dpilot.privacy.events import Event
from dpilot.privacy.filters import Amount, Charge, Price
from dpilot.privacy.ledger.history import Commitment, Extension, Grant, History, Stage
from dpilot.privacy.ledger.store import FORMAT, Appender, LedgerRow, Location, Store, read_body
from dpilot.privacy.unit import RECORD, PrivacyUnit

Body = Mapping[str, Any]


@lru_cache(maxsize=1)
def writer() -> str:
    """Who prices: dpilot and the library behind its accountants, with their versions."""
    try:
        library = version("dp-accounting")
    except PackageNotFoundError:  # a plan that carries its certified cost needs none
        library = "not installed"
    return f"dpilot {dpilot.__version__}, dp-accounting {library}"


def open_body(
    identity: str, dataset: str, budget: Budget, mode: str, bound: str, order: float | None, unit: str = RECORD.name
) -> Body:
    """Row 0."""
    return {
        "format": FORMAT,
        "ledger": identity,
        "dataset": dataset,
        "budget": _budget(budget),
        "mode": mode,
        "bound": bound,
        "order": None if order is None else repr(order),
        "neighbours": f"add or remove one {unit}{'' if unit == RECORD.name else ' with all its rows'}",
        **({} if unit == RECORD.name else {"unit": unit}),
        "writer": writer(),
    }


def reserve_body(
    stages: Sequence[Stage], price: Price, *, begun: bool, unit: PrivacyUnit = RECORD, by: str | None = None
) -> Body:
    """A commitment. ``begun``: its only stage starts at once; ``by``: who spends, where the store knows names."""
    return {
        "begun": begun,
        "writer": writer(),
        "bound_used": price.bound_used,
        "additive": price.additive,
        "charges": [
            {**_amount(charge.amount), "split": charge.cell and charge.cell[0], "part": charge.cell and charge.cell[1]}
            for charge in price.charges
        ],
        "stages": [
            {
                **_amount(amount),
                "purpose": stage.purpose,
                "part": stage.part,
                "split": stage.split,
                "event": events.to_dict(stage.event),
            }
            for stage, amount in zip(stages, price.stages, strict=True)
        ],
        **({} if unit.is_record else {"unit": unit.to_dict()}),
        **({} if by is None else {"by": by}),
    }


def stage_body(seq: int, stage: int) -> Body:
    """Something happens to one stage of the commitment in row ``seq``."""
    return {"of": seq, "stage": stage}


def settle_body(seq: int, stage: int, event: Event, amount: Amount) -> Body:
    """One stage is done for ``event``, which costs ``amount``."""
    return {**stage_body(seq, stage), **_amount(amount), "event": events.to_dict(event), "writer": writer()}


def extend_body(budget: Budget, reason: str) -> Body:
    """From here on ``budget`` is the total."""
    return {"budget": _budget(budget), "reason": reason}


def grant_body(grant: Grant) -> Body:
    """From here on a user has this right, and no other cap."""
    return {
        "to": grant.to,
        "role": grant.role,
        "cap": None if grant.cap is None else str(_decimals.to_decimal(grant.cap)),
    }


def move_body(place: Location) -> Body:
    """The ledger goes on at ``place``, or has come from there."""
    return {"place": str(place)}


def fold(rows: Sequence[LedgerRow]) -> History:
    """The history that the rows tell, or LedgerError where they contradict themselves."""
    history: History | None = None
    commitments: dict[int, Commitment] = {}
    for row in rows:
        history = _follow(history, commitments, row)
    if history is None:
        raise LedgerError("the ledger has no rows: expected at least row 0. Restore the file from a copy.")
    return replace(history, commitments=tuple(commitments.values()))


def follow(history: History, row: LedgerRow) -> History:
    """The history after one more row, or LedgerError where it does not follow."""
    commitments = {each.seq: each for each in history.commitments}
    after = _follow(history, commitments, row)
    return replace(after, commitments=tuple(commitments.values()))


def _follow(history: History | None, commitments: dict[int, Commitment], row: LedgerRow) -> History:
    """``follow`` with the commitments by their rows, which is changed: a tuple made anew for each row grows as n^2."""
    try:
        if history is None:
            return _open(row)
        match row.kind:
            case "reserve":
                commitment = _commitment(row)
                history.check_unit(commitment.unit)
                commitments[row.seq] = commitment
            case "extend":
                return _extend(history, row)
            case "grant":
                grant = _read_grant(row.content())
                return replace(history, grants={**history.grants, grant.to: grant})
            case "move":
                return replace(history, moved_to=_validate.line(place=row.content()["place"]))
            case "depart":
                return replace(history, departed=True)
            case "arrive":
                return replace(history, moved_to=None, departed=False)
            case kind:
                _set_state(commitments, row.content(), *_STATES[kind])
        return history
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as problem:
        raise LedgerError(
            f"row {row.seq} ({row.kind!r}) cannot be understood ({problem}): expected format {FORMAT}. "
            "A newer dpilot may have written it, or the file was altered."
        ) from problem


def _open(row: LedgerRow) -> History:
    body = row.content()
    if row.kind != "open" or body["format"] != FORMAT:
        raise InvalidInput("row 0 must open the ledger in this format")
    order = None if body["order"] is None else float(body["order"])
    return History(
        body["ledger"],
        _validate.line(dataset=body["dataset"]),
        body["mode"],
        body["bound"],
        order,
        _read_budget(body["budget"]),
        _validate.line(unit=body.get("unit", RECORD.name)),
    )


def _extend(history: History, row: LedgerRow) -> History:
    body = row.content()
    extension = Extension(row.seq, row.time, _read_budget(body["budget"]), _validate.line(reason=body["reason"]))
    return replace(history, budget=extension.budget, extensions=(*history.extensions, extension))


def _commitment(row: LedgerRow) -> Commitment:
    return Commitment(row.seq, row.time, *_read_reserve(row.body))


@lru_cache(maxsize=1024)
def _read_reserve(text: str) -> tuple[Any, ...]:
    """What a reserve row says, in the order of a Commitment: the same few bodies fill long ledgers."""
    body = read_body(text)
    stages = tuple(Stage(s["purpose"], events.from_dict(s["event"]), s["part"], s["split"]) for s in body["stages"])
    charges = tuple(
        Charge(_read_amount(c), None if c["part"] is None else (c["split"], c["part"])) for c in body["charges"]
    )
    price = Price(charges, tuple(map(_read_amount, body["stages"])), body["bound_used"], body["additive"])
    states = ("reserved" if body["begun"] else "planned",) * len(stages)
    return stages, price, states, PrivacyUnit.from_dict(body.get("unit")), body.get("by")


_STATES: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {  # kind of row: states of a stage before it, and after
    "begin": (("planned",), "reserved"),
    "resume": (("reserved", "resumed"), "resumed"),
    "commit": (("reserved", "resumed"), "committed"),
    "settle": (("reserved",), "settled"),
}


def _set_state(commitments: dict[int, Commitment], body: Body, before: tuple[str, ...], after: str) -> None:
    old, stage = commitments[body["of"]], body["stage"]
    if stage < 0 or old.states[stage] not in before:
        raise InvalidInput(f"stage {stage} of row {old.seq} is {old.states[stage]}, not {' or '.join(before)}")
    states, settled = (*old.states[:stage], after, *old.states[stage + 1 :]), old.settled
    if after == "settled":
        settled = {**settled, stage: (events.from_dict(body["event"]), _read_amount(body))}
    commitments[old.seq] = replace(old, states=states, settled=settled)


def _read_grant(body: Body) -> Grant:
    return Grant(body["to"], body["role"], None if body["cap"] is None else float(_decimals.read(body["cap"])))


def _amount(amount: Amount) -> dict[str, str]:
    return {"loss": _decimals.write(amount.loss), "delta": _decimals.write(amount.delta)}


def _read_amount(data: Mapping[str, Any]) -> Amount:
    return Amount(_decimals.read(data["loss"]), _decimals.read(data["delta"]))


def _budget(budget: Budget) -> dict[str, str]:
    return {
        name: str(_decimals.to_decimal(value)) for name, value in (("epsilon", budget.epsilon), ("delta", budget.delta))
    }


def _read_budget(data: Mapping[str, Any]) -> Budget:
    epsilon, delta = (Decimal(_decimals.read(data[name])) for name in ("epsilon", "delta"))
    return Budget(float(epsilon), float(delta))


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

    def grant(self, grant: Grant) -> None:
        """Give a user a right on the server, and write it down."""
        if self._appender.grant is None:
            raise InvalidInput(
                "a ledger in a file knows no users: expected one in PostgreSQL. See dpilot ledger migrate."
            )
        self.append("grant", grant_body(grant))
        self._appender.grant(grant.to, grant.role)


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
    def path(self) -> Location:
        return self.store.path

    def user(self) -> str | None:
        """Under which name this process spends, where the store knows names."""
        return self.store.user()

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
            history = self._same(fold(appender.rows))
            history.check_here()
            yield Page(history, appender)

    def _same(self, history: History) -> History:
        if history.identity != self.identity:
            raise LedgerError(f"{self.path} holds another ledger now than when it was opened: open it again.")
        return history
