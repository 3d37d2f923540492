"""The ledger of a run as the rows of a table, and what an entry did to the records, in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from dpilot.privacy.budget import Budget
from dpilot.privacy.gaussian import gdp_mu
from dpilot.records import FitRecord
from dpilot.report.words import is_finite, number, percent, upward

_STATES: Final = {
    "planned": "paid, not begun",
    "reserved": "paid, begun and not finished",
    "committed": "paid and done",
    "settled": "done for less than was reserved",
}
HEALTH: Final = "health check"
CLASSES: Final = "classes"
_FIRST: Final = {CLASSES: "The purchase of the classes", HEALTH: "The health check"}
"""What a fit pays before all else, each a commitment of its own."""
EVALUATION: Final = "evaluation"
_MOST: Final = 6
_NUMBERED: Final = re.compile(r"[ ,]*\d+(\.\d+)?( of \d+)?$")  # "trial 2 of 6", "trial 2.1"
_PURPOSES: Final = {
    "scale": "scale: how far the columns reach",
    "gram": "gram: the products of the columns, from which the model follows",
    "gradient": "gradient: steps towards the model",
    "marginals": "marginals: how the values of each column are spread",
}


class AccountRow(NamedTuple):
    """One entry, as text."""

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
    state = str(entry.get("state", ""))
    return AccountRow(
        purpose=_purpose(number(entry.get("purpose", ""))),
        part=_part(entry),
        what=describe(entry["event"]) if "event" in entry else "",
        epsilon=_amount(cost.get("epsilon", entry.get("epsilon"))),
        delta=_amount(cost.get("delta", entry.get("delta"))),
        state=_STATES.get(state, state),
    )


def _part(entry: Mapping[str, Any]) -> str:
    """The part of the records that an entry touched."""
    part = entry.get("part")
    if part is not None:
        return str(part)
    return "those given for it" if entry.get("purpose") == EVALUATION else "all"


class SpentOn(NamedTuple):
    """What a purpose took of the budget of the records it touched: in words, and in percent of the bar."""

    purpose: str
    part: str
    share: str
    percent: float


def spending(ledger: Sequence[Mapping[str, Any]], total: float | None) -> tuple[SpentOn, ...]:
    """What the budget went to, by purpose and part of the records.

    Epsilons do not add up, the squares of mu do: each entry counts by the mu^2 of the Gaussian that would cost as much
    alone. What touches all records counts in every part. Classes that are bought and the health check are commitments
    of their own, before all that: where epsilons of commitments add up to ``total``, their shares are those of epsilon.
    In a ledger that adds Gaussians ``total`` is None. Where the lines themselves add up to ``total``, all shares are
    those of epsilon.
    """
    if total and add_up(ledger, total):
        lines = [(row(entry), float(entry["cost"]["epsilon"])) for entry in ledger]
        lines.sort(key=lambda each: -each[1])
        return tuple(
            SpentOn(
                told.purpose, told.part, f"{percent(round(paid / total, 3))} of epsilon", min(100.0, 100 * paid / total)
            )
            for told, paid in lines
        )
    found: dict[str, dict[str, float]] = {}
    first = []
    for entry in ledger:
        cost = entry.get("cost")
        given = [cost.get(name) for name in ("epsilon", "delta")] if isinstance(cost, Mapping) else [None]
        if not all(map(is_finite, given)):
            continue
        epsilon, delta = map(float, given)  # type: ignore[arg-type]
        if not 0 < epsilon < 1e4 or not 0 < delta < 1:
            continue
        part, purpose = entry.get("part"), _NUMBERED.sub("", row(entry).purpose)
        if purpose in _FIRST and total:
            share = epsilon / total
            first.append(SpentOn(purpose, "all", f"{percent(round(share, 3))} of epsilon", min(100.0, 100 * share)))
            continue
        place = found.setdefault("" if part is None else str(part), {})
        place[purpose] = place.get(purpose, 0.0) + gdp_mu(Budget(epsilon, delta, allow_large_delta=True)) ** 2
    whole = found.pop("", {})
    made = first
    for part, spent in (found or {"all": {}}).items():
        together = {name: whole.get(name, 0.0) + spent.get(name, 0.0) for name in {**whole, **spent}}
        total = sum(together.values())
        made += [
            SpentOn(purpose, part, f"about {percent(round(value / total, 3))}", 100 * value / total)
            for purpose, value in sorted(together.items(), key=lambda each: -each[1])
        ]
    return tuple(made)


def spent_on(record: FitRecord) -> tuple[SpentOn, ...]:
    """``spending`` of a record."""
    paid_in, total = record.privacy.get("ledger") or {}, float(record.privacy["epsilon"])
    return spending(record.ledger, None if paid_in.get("bound") == "gdp" else total)


def add_up(ledger: Sequence[Mapping[str, Any]], total: float) -> bool:
    """Whether the epsilons of several lines, which all touched all records, are the total."""
    costs = [entry["cost"] for entry in ledger if isinstance(entry.get("cost"), Mapping)]
    found = [float(cost["epsilon"]) for cost in costs if is_finite(cost.get("epsilon"))]
    several = len(found) == len(ledger) > 1 and all(entry.get("part") is None for entry in ledger)
    return several and abs(sum(found) - total) < 0.002 * total


def is_paid_apart(record: FitRecord) -> bool:
    """Whether figures of the run stand in another ledger than its own."""
    paid_in: Any = record.privacy.get("ledger") or {}
    bought = any(entry.get("purpose") == EVALUATION for entry in record.ledger)
    return bought and bool(paid_in.get("own"))


def spending_note(record: FitRecord) -> str:
    """What the shares are shares of, as far as it concerns this ledger."""
    parts = {entry["part"] for entry in record.ledger if entry.get("part") is not None}
    found = spent_on(record)
    notes = []
    if len(parts) > 1:
        notes.append("A record is in one part only: the shares of each part add up to 100 % by themselves.")
    first = [_FIRST[each.purpose] for each in found if each.share.endswith("of epsilon") and each.purpose in _FIRST]
    for which in first if len(first) < len(found) else ():
        notes.append(f"{which} is paid first, in epsilon; the other shares are of what is then left.")
    if any(each.share.startswith("about") for each in found):
        notes.append("Shares called “about” are in a measure of the cost that adds up where epsilons do not (mu²).")
    return " ".join(notes)


def total_note(record: FitRecord) -> str:
    """How the lines of the ledger and the total belong together."""
    parts = {entry["part"] for entry in record.ledger if entry.get("part") is not None}
    if len(record.ledger) < 2:
        return ""
    if add_up(record.ledger, float(record.privacy["epsilon"])):
        return "The lines add up to the total, up to rounding."
    apart = (
        " A record lies in one part only and pays for that part alone: the total is what the dearest part costs, with "
        "what touched all records."
        if len(parts) > 1
        else ""
    )
    head = "The lines need not add up to the total: each is what it would cost alone, and together they are cheaper."
    return f"{head}{apart}"


def noise_note(record: FitRecord) -> str:
    """Where a full-batch run has one noise in the list of costs and another in each step, how they belong together."""
    whole, each, steps = (record.plan.get(name) for name in ("noise_of_all_steps", "noise_multiplier", "steps"))
    if not all(map(is_finite, (whole, each, steps))):
        return ""
    return (
        f"The final run reads all records in each of {number(steps)} steps. Its noise is {number(each)} times the most "
        f"that one record can add to a step; all steps together cost as much as one release with "
        f"{number(whole)} times, which is what the list says: {number(each)} = {number(whole)} × √{number(steps)}."
    )


def _purpose(text: str) -> str:
    """The purpose of an entry for people; what a fit pays first bears the name of its key, which says nothing here.

    >>> [_purpose(f"{each} of fit 35a1e9ea89df6585") for each in ("health", "classes")], _purpose("final run")
    (['health check', 'classes'], 'final run')
    """
    if text.startswith("health of fit "):
        return HEALTH
    return _PURPOSES.get(text, text.split(" of fit ")[0])


def _amount(value: object) -> str:
    if value is None:
        return ""
    return upward(value, 3) if is_finite(value) else number(value)  # type: ignore[arg-type]


def describe(event: object) -> str:
    """One event, as ``privacy.events.to_dict`` writes it, in words.

    Edge cases:
        equal steps in a row             are told once, with their number
        many different steps             the first are told, and how many more there are
        what this version does not know  its name is told, and that there are no words for it

    >>> noise = {"type": "Gaussian", "noise_multiplier": 3.7}
    >>> describe(noise)
    'Gaussian noise, 3.7 times the most that one record can add'
    >>> step = {"type": "PoissonSampled", "rate": 0.012, "event": noise}
    >>> describe({"type": "Repeated", "times": 859, "event": step}).removeprefix(describe(noise))
    ', repeated 859 times, each on a random 1.2 % of the records'
    """
    if not isinstance(event, Mapping):
        return number(event)
    name = str(event.get("type") or "a release")
    try:
        return _SENTENCES[name](event)
    except (KeyError, TypeError):
        return f"{name} (no words for it here; the record, fit.json, has all of it)"


def _repetition(event: Mapping[str, Any]) -> str:
    """The inner event with how often it happened; the part of the records after that."""
    inner, times = event["event"], f"repeated {number(event['times'])} times"
    if _type(inner) == "PoissonSampled" and _is_plain(inner["event"]):
        return f"{describe(inner['event'])}, {times}, each on a random {percent(inner['rate'])} of the records"
    return f"{describe(inner)}, {times}" if _is_plain(inner) else f"{times}: ({describe(inner)})"


def _sampled(event: Mapping[str, Any]) -> str:
    inner, part = event["event"], f"on a random {percent(event['rate'])} of the records"
    return f"{describe(inner)}, {part}" if _is_plain(inner) else f"{part}: ({describe(inner)})"


def _all(event: Mapping[str, Any]) -> str:
    parts = [
        run[0] if len(run) == 1 else {"type": "Repeated", "times": len(run), "event": run[0]}
        for run in (list(equal) for _, equal in groupby(_flat(event)))
    ]
    told = [describe(part) for part in parts[:_MOST]]
    more = [f"{len(parts) - _MOST:,} more like these (all are in the record, fit.json)"] if len(parts) > _MOST else []
    return "; then ".join([*told, *more]) or "nothing"


def _flat(event: Mapping[str, Any]) -> Iterator[Any]:
    for each in event["events"]:
        if _type(each) == "Composed":
            yield from _flat(each)
        else:
            yield each


def _selection(event: Mapping[str, Any]) -> str:
    mean = number(event["mean_trials"])
    return f"the best of a secret number of trials, {mean} on average; each: {describe(event['event'])}"


def _type(event: object) -> str:
    return str(event.get("type")) if isinstance(event, Mapping) else ""


def _is_plain(event: object) -> bool:
    """Whether its words can stand before a comma."""
    return _type(event) in ("Gaussian", "PureDP", "ExponentialMechanism", "ApproxDP")


_SENTENCES: Final[dict[str, Callable[[Mapping[str, Any]], str]]] = {
    "Gaussian": lambda e: f"Gaussian noise, {number(e['noise_multiplier'])} times the most that one record can add",
    "PoissonSampled": _sampled,
    "Repeated": _repetition,
    "Composed": _all,
    "OneOf": lambda e: "one of these, it is not told which: " + " | ".join(describe(each) for each in e["events"]),
    "PureDP": lambda e: f"one release of epsilon {number(e['epsilon'])}",
    "ExponentialMechanism": lambda e: f"one noisy choice of epsilon {number(e['epsilon'])}",
    "ApproxDP": lambda e: f"one release of epsilon {number(e['epsilon'])}, delta {number(e['delta'])}",
    "RepeatAndSelect": _selection,
}
