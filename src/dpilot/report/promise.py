"""The privacy statement: the numbers behind the plain words, and whether the run is private at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dpilot import _validate
from dpilot.noise import NOT_HARDENED
from dpilot.records import FitRecord, unit
from dpilot.report import meaning, words

ORDINARY: Final = frozenset({NOT_HARDENED})


@dataclass(frozen=True, slots=True)
class Promise:
    """What the statement says, as text."""

    epsilon: str
    delta: str
    delta_in: str
    unit: str
    factor: str
    squared: str
    even: str
    beliefs: tuple[tuple[str, str, str], ...]
    weak: bool
    large_delta: str
    hardened: bool
    alarms: tuple[str, ...]

    @property
    def private(self) -> bool:
        return not self.alarms


def promise(record: FitRecord) -> Promise:
    """The statement of a record.

    Edge cases:
        no epsilon or delta in ``privacy``   InvalidInput: a page without a total would promise nothing
        a stamp that is not known            an alarm: what is not known to be ordinary is not called private
    """
    epsilon = _validate.non_negative(epsilon=record.privacy.get("epsilon"))
    delta = _validate.non_negative(delta=record.privacy.get("delta"))
    return Promise(
        epsilon=words.upward(epsilon),
        delta=words.upward(delta, 3),
        delta_in=words.one_in(delta),
        unit=str(record.privacy.get("unit") or unit(record.unprotected)).strip().rstrip("."),
        factor=_times(epsilon),
        squared=_times(2 * epsilon),
        even=words.at_most(meaning.belief(0.5, epsilon).most),
        beliefs=meaning.table(epsilon),
        weak=meaning.is_weak(epsilon),
        large_delta=_large(delta, record.data),
        hardened=NOT_HARDENED not in record.stamps,
        alarms=alarms(record.stamps),
    )


def _times(epsilon: float) -> str:
    times = meaning.factor(epsilon)
    return words.upward(times, 3) if times < 1e300 else "more than 10³⁰⁰"


def alarms(stamps: Sequence[str]) -> tuple[str, ...]:
    """The stamps that say that this run is not private, once each.

    >>> alarms(["float noise, not hardened", "test noise (seed 7): not private"])
    ('test noise (seed 7): not private',)
    """
    return tuple(stamp for stamp in dict.fromkeys(stamps) if stamp not in ORDINARY)


def _large(delta: float, data: Mapping[str, Any]) -> str:
    """A remark where delta is large for the declared size; "" otherwise."""
    size = data.get("size")
    if not words.is_finite(size) or delta * float(size) * 10 <= 1 + 1e-9:  # type: ignore[arg-type]
        return ""
    return f"{words.upward(delta, 3)} is large for {words.number(size)} records: a tenth of one in so many is usual"
