"""What another epsilon, or more records, would buy: from a released figure or declared numbers alone.

    error(u) = error(u0) (u / u0)^-p,      u = n mu,      error = 1 - figure

n is the number of records (or units) and mu that of the Gaussian which costs as much as the budget: the noise of a mean
is 1 / (n mu), so twice the records count as twice the mu. How fast errors fall, p, is not known of a task of which one
figure was released: it has the distribution that it had over 21 tables on which the law was developed. The interval
joins it with the noise and sampling of the released figure. benchmarks/forecast says how often intervals held.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from dpilot import _validate
from dpilot._arrays import Floats
from dpilot.errors import InvalidInput
from dpilot.metrics.interval import quantile
from dpilot.privacy.budget import Budget
from dpilot.privacy.gaussian import gdp_mu
from dpilot.records import FitRecord
from dpilot.report import words
from dpilot.report.kinds import key

__all__ = ["EXPONENTS", "LEVEL", "Forecast", "KnownFigure", "forecast", "known_of"]

LEVEL: Final = 0.8
EXPONENTS: Final = (
    0.0, 0.015, 0.029, 0.037, 0.046, 0.054, 0.059, 0.064, 0.071, 0.083, 0.097, 0.109, 0.121, 0.142, 0.175, 0.204, 0.261,
    0.342, 0.475,
)  # fmt: skip
"""The quantiles 0.05, 0.1, .. 0.95 of p over the development tasks: ``python -m benchmarks forecast`` prints them."""
_FIGURES: Final = ("accuracy", "r2")


@dataclass(frozen=True, slots=True)
class KnownFigure:
    """A figure whose best is 1, its 95 % interval for the population, and the budget and size it was reached with."""

    figure: str
    value: float
    interval: tuple[float, float]
    budget: Budget
    size: float

    def __post_init__(self) -> None:
        _validate.positive("Declare the number of records.", size=self.size)
        low, high = self.interval
        if not low <= self.value <= high <= 1:
            raise InvalidInput(
                f"the figure is {self.value} in {self.interval}: expected a share of 1, inside its interval."
            )


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a run with this budget and size would reach: the middle, and the 80 % interval."""

    budget: Budget
    size: float
    value: float
    interval: tuple[float, float]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "epsilon": self.budget.epsilon, "delta": self.budget.delta, "size": self.size, "value": self.value,
            "interval": list(self.interval), "level": LEVEL,
        }  # fmt: skip


def known_of(record: FitRecord) -> KnownFigure:
    """The first figure of a record, as far as it can be forecast.

    Edge cases:
        no accuracy and no R squared, no size    InvalidInput: nothing to go on
        a figure that is below 0 or lies outside its interval by rounding    pulled in
    """
    found = next((each for each in record.metrics if each.of == "" and key(each.name) in _FIGURES), None)
    size = record.data.get("size")
    if found is None or not words.is_finite(size):
        raise InvalidInput(
            "the record has no accuracy, no R squared or no size: expected a run with figures. Score it "
            "(run.evaluate), or declare what is known: dpilot forecast --value 0.85 --epsilon 1 --size 20000."
        )
    low, high = (min(max(end, -1.0), 1.0) for end in found.sampling)
    value = min(max(found.value, low), high)
    total = Budget(float(record.privacy["epsilon"]), float(record.privacy["delta"]), allow_large_delta=True)
    return KnownFigure(found.name, value, (low, high), total, float(size))  # type: ignore[arg-type]


def forecast(known: KnownFigure, *, epsilon: float | None = None, size: float | None = None) -> Forecast:
    """The figure of another run of the same task, with another epsilon, another size, or both; delta stays.

    Guarantee:
        Post-processing of a released figure and declared numbers: it costs nothing, as often as it is asked.

    Example:
        >>> known = KnownFigure("accuracy", 0.8, (0.8, 0.8), Budget(1.0, 1e-6), 10_000)
        >>> more = forecast(known, epsilon=2.0)
        >>> 0.8 < more.value < 0.85, more.interval[0] < more.value < more.interval[1]
        (True, True)
    """
    was = known.budget
    budget = Budget(was.epsilon if epsilon is None else epsilon, was.delta, allow_large_delta=True)
    count = known.size if size is None else _validate.positive(size=size)
    ratio = count * gdp_mu(budget) / (known.size * gdp_mu(known.budget))
    found = np.sort((1 - np.outer(1 - _likely(known), ratio ** -np.array(EXPONENTS))).ravel())
    edge = (1 - LEVEL) / 2
    low, middle, high = (float(each) for each in np.quantile(found, [edge, 0.5, 1 - edge]))
    return Forecast(budget, count, middle, (low, high))


def _likely(known: KnownFigure) -> Floats:
    """Where the figure may lie: quantiles of a normal whose two halves end where its interval does, at most 1."""
    low, high = known.interval
    at = np.array([NormalDist().inv_cdf(place / 40) for place in range(1, 40, 2)]) / quantile()
    spread = np.where(at < 0, known.value - low, high - known.value)
    return np.asarray(np.minimum(known.value + at * spread, 1.0))


def usual(known: KnownFigure) -> Sequence[Forecast]:
    """What is asked most: half, twice and four times the epsilon, and twice the records."""
    epsilon = known.budget.epsilon
    more = [forecast(known, epsilon=factor * epsilon) for factor in (0.5, 2.0, 4.0)]
    return [*more, forecast(known, size=2 * known.size)]
