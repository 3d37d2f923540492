"""The privacy statement: what epsilon means in odds, the numbers in words, and whether the run is private at all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from dpilot import _validate
from dpilot.noise import NOT_HARDENED
from dpilot.privacy.unit import RECORD
from dpilot.records import PUBLIC_VALIDATION, FitRecord, neighbours
from dpilot.report import words


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
    grade: str
    content: str
    neighbours: str
    large_delta: str
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
    unit = str(record.privacy.get("unit") or neighbours(record.unprotected, RECORD)).strip().rstrip(".")
    return Promise(
        epsilon=words.upward(epsilon),
        delta=words.upward(delta, 3),
        delta_in=words.one_in(delta),
        unit=unit,
        factor=_times(epsilon),
        squared=_times(2 * epsilon),
        even=words.at_most(belief(0.5, epsilon).most),
        beliefs=beliefs(epsilon),
        grade=grade(epsilon),
        content=words.at_most(belief(0.5, 2 * epsilon).most),
        neighbours=_comparison(unit),
        large_delta=_large(delta, record.data),
        alarms=alarms(record.stamps),
    )


def _times(epsilon: float) -> str:
    times = factor(epsilon)
    return words.upward(times, 3) if times < 1e300 else "more than 10³⁰⁰"


def alarms(stamps: Sequence[str]) -> tuple[str, ...]:
    """The stamps that say that this run is not private, once each.

    >>> alarms(["float noise, not hardened", "test noise (seed 7): not private"])
    ('test noise (seed 7): not private',)
    """
    return tuple(stamp for stamp in dict.fromkeys(stamps) if stamp not in (NOT_HARDENED, PUBLIC_VALIDATION))


def _large(delta: float, data: Mapping[str, Any]) -> str:
    """A remark where delta is large for the declared size; "" otherwise."""
    size = data.get("size")
    if not words.is_finite(size) or delta * float(size) * 10 <= 1 + 1e-9:  # type: ignore[arg-type]
        return ""
    return (
        f"Delta is larger than usual for {words.number(size)} records (usual: at most 1 in "
        f"{words.number(round(10 * float(size)))})"  # type: ignore[arg-type]
    )


PRIORS: Final = (0.001, 0.01, 0.1, 0.5, 0.9)
"""How sure somebody may be before."""


class Belief(NamedTuple):
    """How sure somebody was of a statement about one record, and the least and most they may be afterwards."""

    before: float
    least: float
    most: float


def factor(epsilon: float) -> float:
    """e^epsilon, the most by which one record can multiply the chance of any result; inf beyond floats."""
    return math.exp(epsilon) if epsilon < 700 else math.inf


def belief(before: float, epsilon: float) -> Belief:
    """The range of a belief afterwards: the odds move by a factor of at most e^epsilon, up or down::

        most = e^eps p / (e^eps p + 1 - p),        least = p / (p + e^eps (1 - p))

    Guarantee:
        Holds for epsilon-DP. With a delta, any (epsilon, delta)-DP release is what one could make of: with chance
        delta, no promise; otherwise, an epsilon-DP release.

    Example:
        >>> belief(0.5, 1.0)
        Belief(before=0.5, least=0.2689..., most=0.7310...)

    Reference:
        Kairouz, Oh and Viswanath, "The Composition Theorem for Differential Privacy", ICML 2015, Theorem 3.
    """
    p, moved = _validate.open_unit(before=before), _validate.non_negative(epsilon=epsilon)
    odds = math.log(p) - math.log1p(-p)
    return Belief(p, _share(odds - moved), _share(odds + moved))


def _share(log_odds: float) -> float:
    if log_odds >= 0:
        return 1 / (1 + math.exp(-log_odds))
    return math.exp(log_odds) / (1 + math.exp(log_odds))


def beliefs(epsilon: float) -> tuple[tuple[str, str, str], ...]:
    """(before, afterwards at least, afterwards at most) as text, rounded outwards.

    >>> beliefs(1.0)[3]
    ('50 %', '26.8 %', '73.2 %')
    """
    rows = (belief(prior, epsilon) for prior in PRIORS)
    return tuple((words.percent(row.before), words.at_least(row.least), words.at_most(row.most)) for row in rows)


_GRADES: Final = (
    (1.0, "Strongly, as such promises go."),
    (3.0, "Moderately: how sure somebody can become is bounded, but not by much."),
    (5.0, "Weakly: by the promise alone an even guess may become nearly certain."),
    (math.inf, "Hardly: at this epsilon the promise alone rules out little."),
)
SCALE: Final = (
    "The scale of this page is a convention: up to epsilon 1 strong, to 3 moderate, to 5 weak, above hardly any."
)


def grade(epsilon: float) -> str:
    """How strong the promise alone is, in words: of any epsilon.

    >>> [grade(epsilon).split(":")[0] for epsilon in (1.0, 1.01, 3.0, 3.5, 5.0, 5.1)]
    ['Strongly, as such promises go.', 'Moderately', 'Moderately', 'Weakly', 'Weakly', 'Hardly']
    """
    return next((said for most, said in _GRADES if epsilon <= most), _GRADES[-1][1])


def _comparison(unit: str) -> str:
    """What a data set is compared with, for people; "" where the unit is described in other words."""
    if "replaced by an empty one" in unit:
        return "The data are compared with the same data in which that one is blanked; how many there are is public."
    return (
        "The data are compared with the same data without that one, or with it." if "added or removed" in unit else ""
    )
