"""What epsilon means in odds: how far anybody's belief about one record can move."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from dpilot import _validate
from dpilot.report import words

PRIORS: Final = (0.001, 0.01, 0.1, 0.5, 0.9)
WEAK: Final = 0.99  # an even guess that may become this sure is hardly bounded


@dataclass(frozen=True, slots=True)
class Belief:
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


def table(epsilon: float) -> tuple[tuple[str, str, str], ...]:
    """(before, afterwards at least, afterwards at most) as text, rounded outwards.

    >>> table(1.0)[3]
    ('50 %', '26.8 %', '73.2 %')
    """
    rows = (belief(prior, epsilon) for prior in PRIORS)
    return tuple((words.percent(row.before), words.at_least(row.least), words.at_most(row.most)) for row in rows)


def is_weak(epsilon: float) -> bool:
    """Whether the bound alone lets an even guess become nearly certain."""
    return belief(0.5, epsilon).most > WEAK
