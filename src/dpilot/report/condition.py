"""The health of the data as lines of a table: what share of the records could be used, and the flaws by column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from dpilot.report import words
from dpilot.report.verdict import WIDEST

_LOUD: Final = 0.1
"""Of the records: a flaw that is surely above this, or unusable records, are said loudly."""
_SHARED: Final = 1.7
"""Half-widths of a 95 % interval: of some forty lines that noise alone makes, not one is further from 0 mostly."""
_FIELDS: Final = ("value", "low", "high")


class Flaw(NamedTuple):
    """What is wrong with a share of a column's cells; ``share`` is an end of the interval where that is wide."""

    column: str
    what: str
    share: str
    between: str
    loud: bool


class Condition(NamedTuple):
    """The usable share in words, the flaws that are more than noise, the largest first, and a sentence on the rest."""

    sentence: str
    loud: bool
    flaws: tuple[Flaw, ...]
    rest: str

    @property
    def alarms(self) -> tuple[str, ...]:
        """What a person must not miss."""
        flaws = (
            f"Column {flaw.column!r}: {flaw.what} in {flaw.share} of the records ({flaw.between})."
            for flaw in self.flaws
            if flaw.loud
        )
        return (*((self.sentence,) if self.loud else ()), *flaws)


def condition(health: Mapping[str, Any] | None, shown: int = 20) -> Condition | None:
    """The health of a record, as ``FitRecord.health`` holds it; None where there is none.

    >>> share = {"what": "usable", "column": "", "value": 0.62, "low": 0.58, "high": 0.66}
    >>> condition({"usable": share, "columns": [], "judged": True}).alarms
    ('Only about 62 % of the records could be used (58 to 66 %).',)
    """
    if health is None:
        return None
    usable, judged = health["usable"], bool(health.get("judged", True))
    found = sorted(health["columns"], key=lambda each: (-each["value"], -each["high"]))
    sure = [each for each in found if each["value"] > _SHARED * (each["high"] - each["value"])][:shown]
    rest = [each for each in found if each not in sure]
    loud = usable["high"] < 1 - _LOUD
    return Condition(
        _usable(usable, judged=judged, loud=loud),
        loud,
        tuple(map(_flaw, sure)),
        _rest(rest, bool(sure), usable if judged else None),
    )


def _rest(found: Sequence[Mapping[str, Any]], others: bool, usable: Mapping[str, Any] | None) -> str:
    if not found:
        return ""
    what, most = f"{len(found):,} {'more ' if others else ''}kinds of flaws", max(found, key=lambda each: each["high"])
    return (
        f"{what} were counted that may be noise alone, or are smaller; none is in more than "
        f"{words.at_most(most['high'])} of the records ({most['column']}: {most['what']}). Single columns are "
        f"measured more roughly than all together{_in_all(usable)}."
    )


def _in_all(usable: Mapping[str, Any] | None) -> str:
    """The sharper bound: no flaw that makes records unusable is in more of them than cannot be used in all."""
    return "" if usable is None else f"; in all, at most {words.at_most(1 - usable['low'])} of the records are unusable"


def is_health(health: object) -> bool:
    """Whether this has the form that fits write."""
    if health is None:
        return True
    if not isinstance(health, dict) or not isinstance(health.get("columns"), list):
        return False
    return all(map(_is_share, [health.get("usable"), *health["columns"]]))


def _is_share(share: object) -> bool:
    return (
        isinstance(share, dict)
        and all(isinstance(share.get(name), str) for name in ("what", "column"))
        and all(words.is_finite(share.get(name)) for name in _FIELDS)
    )


def _usable(usable: Mapping[str, Any], *, judged: bool, loud: bool) -> str:
    between = _between(usable)
    if not judged and not loud:
        return f"Too few records for this budget to say how many could be used: anything from {between}."
    share = between if _is_wide(usable) else f"about {words.percent(usable['value'])}"
    text = f"{f'only {share}' if loud else share} of the records could be used"
    return f"{text[0].upper()}{text[1:]}{'' if _is_wide(usable) else f' ({between})'}."


def _flaw(found: Mapping[str, Any]) -> Flaw:
    return Flaw(found["column"], found["what"], _share(found), _between(found), found["low"] > _LOUD)


def _share(found: Mapping[str, Any]) -> str:
    if found["low"] <= 0:
        return f"at most {words.at_most(found['high'])}"
    if _is_wide(found):
        return f"at least {words.at_least(found['low'])}"
    return f"about {words.percent(found['value'])}"


def _is_wide(found: Mapping[str, Any]) -> bool:
    return bool(found["high"] - found["low"] > WIDEST)


def _between(found: Mapping[str, Any]) -> str:
    return words.between(found["low"], found["high"], words.percent)
