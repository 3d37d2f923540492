"""Intervals of ratios of noisy counts: from the noise alone, and from noise and sampling together.

An estimate of a rate t is hits / (hits + misses), both noisy. Under the true t the difference (1 - t) hits - t misses
has mean 0 and a variance that is known but for t, so the interval is the set of t that it does not contradict::

    ((1 - t) hits - t misses)^2 <= z^2 (s^2 ((1 - t)^2 a + t^2 b) + m t (1 - t)),   s noise of a cell, a and b cells

with m = 0 for the noise alone (where does the rate of these records lie) and m = hits + misses for the sampling as well
(where does the rate of the population lie). Without noise the second is Wilson's interval.

Reference:
    ratios: Fieller, 1954; Wilson, 1927; sums and quotients of estimates: Zou and Donner, Statistics in Medicine 2008,
    and Donner and Zou, Statistical Methods in Medical Research 2012 ("MOVER").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np

from dpilot._arrays import Floats

LEVEL: Final = 0.95
Interval = tuple[float, float]


def quantile(comparisons: int = 1) -> float:
    """The normal quantile of one side of a 95 % interval, shared by ``comparisons``.

    >>> round(quantile(), 3), round(quantile(10), 3)
    (1.96, 2.807)
    """
    return NormalDist().inv_cdf(1 - (1 - LEVEL) / 2 / comparisons)


@dataclass(frozen=True, slots=True)
class Spread:
    """How an estimate may be off: ``deviation`` of the noise in one cell, and whether sampling counts as well."""

    deviation: float
    sampling: bool = False


@dataclass(frozen=True, slots=True)
class Proportion:
    """A rate from two noisy counts, and the number of cells that each of them adds up.

    Edge cases:
        no records, by the noisy counts    the value is 1/2, and the interval says that nothing is known
        a count below 0                    the value stays in [0, 1]

    Example:
        >>> rate = Proportion(90.0, 10.0)
        >>> rate.value, [round(end, 3) for end in rate.interval(Spread(0.0, sampling=True))]
        (0.9, [0.826, 0.945])
    """

    hits: float
    misses: float
    hit_cells: int = 1
    miss_cells: int = 1

    @property
    def value(self) -> float:
        total = self.hits + self.misses
        return clip_unit(self.hits / total) if total > 0 else 0.5

    def interval(self, spread: Spread, comparisons: int = 1) -> Interval:
        """The rates that the counts do not contradict, within [0, 1]."""
        if self.hits + self.misses <= 0:
            return 0.0, 1.0
        found = self._set(self.hits, self.misses, spread, quantile(comparisons))
        if not found:  # both counts cannot be so: the one below 0 is read as 0
            found = self._set(max(self.hits, 0.0), max(self.misses, 0.0), spread, quantile(comparisons))
        return hull(self.value, found)

    def _set(self, hits: float, misses: float, spread: Spread, z: float) -> list[float]:
        """The ends of the set: roots of a square in t, and the ends of [0, 1] that are inside."""
        # ((1 - t) h - t m)^2 - z^2 (s^2 ((1 - t)^2 a + t^2 b) + n t (1 - t)) <= 0, ordered by powers of t.
        # tests/metrics/test_intervals.py::test_without_noise_the_interval_is_wilsons.
        total, noise = hits + misses, (z * spread.deviation) ** 2
        drawn = z * z * total if spread.sampling else 0.0
        a = total**2 - noise * (self.hit_cells + self.miss_cells) + drawn
        b = 2 * noise * self.hit_cells - 2 * hits * total - drawn
        c = hits**2 - noise * self.hit_cells
        roots = [root for root in _roots(a, b, c) if 0 <= root <= 1]
        return roots + [end for end in (0.0, 1.0) if a * end * end + b * end + c <= 0]


@dataclass(frozen=True, slots=True)
class Difference:
    """(plus - minus) / total for two disjoint noisy counts of a noisy total, and the number of cells of each.

    ::

        variance of the numerator less d times the total, at the true difference d:
            noise     s^2 (plus_cells (1 - d)^2 + minus_cells (1 + d)^2 + the other cells d^2)
            sampling  plus + minus - d^2 total

    Edge cases:
        no records, by the noisy counts    the value is 0, and the interval says that nothing is known

    Example:
        >>> [round(end, 3) for end in Difference(30.0, 10.0, 100.0).interval(Spread(0.0, sampling=True))]
        [0.077, 0.308]
    """

    plus: float
    minus: float
    total: float
    plus_cells: int = 1
    minus_cells: int = 1
    cells: int = 2

    @property
    def value(self) -> float:
        return min(max((self.plus - self.minus) / self.total, -1.0), 1.0) if self.total > 0 else 0.0

    def interval(self, spread: Spread) -> Interval:
        """The differences that the counts do not contradict, within [-1, 1]."""
        if self.total <= 0:
            return -1.0, 1.0
        # (p - m - d n)^2 <= z^2 (noise + sampling), ordered by powers of d: a d^2 + b d + c <= 0
        z2, difference = quantile() ** 2, self.plus - self.minus
        noise, drawn = z2 * spread.deviation**2, z2 if spread.sampling else 0.0
        a = self.total**2 - noise * self.cells + drawn * self.total
        b = -2 * difference * self.total - 2 * noise * (self.minus_cells - self.plus_cells)
        c = difference**2 - noise * (self.plus_cells + self.minus_cells)
        c -= drawn * (max(self.plus, 0.0) + max(self.minus, 0.0))
        roots = [root for root in _roots(a, b, c) if -1 <= root <= 1]
        return hull(self.value, roots + [end for end in (-1.0, 1.0) if a + b * end + c <= 0])


def mean(rates: Sequence[Proportion], spread: Spread) -> Interval:
    """The interval of the mean of independent rates: their distances to their own ends add by squares.

    Edge cases:
        a rate of which nothing is known    its distances are no deviations, so they add as they are
    """
    values = np.array([rate.value for rate in rates])
    low, high = np.array([rate.interval(spread) for rate in rates]).T
    unknown = high - low >= 1
    below, above = (
        (math.hypot(*distance[~unknown]) + distance[unknown].sum()) / len(rates)
        for distance in (values - low, high - values)
    )
    return clip_unit(float(values.mean() - below)), clip_unit(float(values.mean() + above))


def difference(first: Proportion, second: Proportion, spread: Spread, comparisons: int = 1) -> Interval:
    """The interval of ``first - second``, two independent rates: distances to their own ends add by squares."""
    (low, high), (least, most) = first.interval(spread, comparisons), second.interval(spread, comparisons)
    value = first.value - second.value
    below = math.hypot(first.value - low, most - second.value)
    above = math.hypot(high - first.value, second.value - least)
    return max(value - below, -1.0), min(value + above, 1.0)


def lowest(singles: Sequence[Interval], shared: Sequence[Interval]) -> Interval:
    """The interval of the least of several figures, from theirs alone and theirs at a level shared by all.

    Guarantee:
        It covers at no less than the level. The least of the lower ends is wrong only if that of the figure which is
        truly least is wrong; the least of the upper ends if any is wrong, for which they share the level.
    """
    return min(low for low, _ in singles), min(high for _, high in shared)


def quotient(over: Proportion, under: Proportion, spread: Spread, comparisons: int = 1) -> Interval:
    """The interval of one rate over another, independent one, within [0, 1]: a larger quotient counts as 1.

    A quotient r is inside if 0 lies in the interval of ``over - r under``.
    """
    r = np.linspace(0.0, 1.0, 2001)
    (low, high), (least, most) = over.interval(spread, comparisons), under.interval(spread, comparisons)
    difference = over.value - r * under.value
    above = np.hypot(over.value - low, r * (most - under.value))
    below = np.hypot(high - over.value, r * (under.value - least))
    inside = r[(difference <= above + 1e-12) & (difference >= -below - 1e-12)]
    value = clip_unit(over.value / under.value) if under.value > 0 else 1.0
    return hull(value, inside.tolist())


def invert_score(value: float, t: Floats, score: Floats, variance: Floats) -> Interval:
    """The interval of ``value`` and of all t whose score is no further from 0 than its variance explains."""
    return hull(value, t[score**2 <= quantile() ** 2 * variance])


def hull(value: float, points: Sequence[float] | Floats) -> Interval:
    """The smallest interval with the value and all the points in it."""
    return float(min([value, *points])), float(max([value, *points]))


def clip_unit(value: float) -> float:
    return min(max(value, 0.0), 1.0)


def _roots(a: float, b: float, c: float) -> list[float]:
    """The real roots of a t^2 + b t + c, found without loss of digits."""
    square = b * b - 4 * a * c
    if a == 0 or square < 0:
        return [-c / b] if a == 0 and b != 0 else []
    half = -(b + math.copysign(math.sqrt(square), b)) / 2
    return [half / a, *([c / half] if half else [])]
