"""One figure with what is known of its error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dpilot.metrics.interval import Interval, Spread
from dpilot.records import MetricRecord


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure, what it is of ("" for all records), and two 95 % intervals.

    ``noise_interval``: where the figure of these very records lies, which the noise hides. ``sampling_interval``: where
    that of the population lies they were drawn from, noise and sampling together. ``exact``: no noise was added,
    because the records were declared public.
    """

    name: str
    of: str
    value: float
    noise_interval: Interval
    sampling_interval: Interval
    exact: bool = False

    def record(self) -> MetricRecord:
        """The same as plain data."""
        return MetricRecord(self.name, self.of, self.value, self.noise_interval, self.sampling_interval, self.exact)


def metric(name: str, of: str, value: float, deviation: float, interval: Callable[[Spread], Interval]) -> Metric:
    """A figure whose two intervals come from one function of the spread."""
    noise, sampling = interval(Spread(deviation)), interval(Spread(deviation, sampling=True))
    return Metric(name, of, value, noise, sampling, exact=deviation == 0)
