"""Released figures as one value that prints and can be looked up by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dpilot import _validate
from dpilot.metrics.metric import Metric

__all__ = ["LONG", "Figures"]

LONG: Final = ("confusion", "true positive rate", "false positive rate", "calibration", "group recall")
"""Figures that come in tables too long for a screen; reports draw them."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Released figures with their 95 % intervals.

    Example:
        >>> made = Figures((Metric("accuracy", "", 0.85, (0.84, 0.86), (0.83, 0.87)),))
        >>> made["accuracy"].value, len(made)
        (0.85, 1)
        >>> print(made)
        figure                of                      value   these records       population
        accuracy                                      0.850   0.840 to 0.860      0.830 to 0.870
    """

    metrics: tuple[Metric, ...]

    def __iter__(self) -> Iterator[Metric]:
        return iter(self.metrics)

    def __len__(self) -> int:
        return len(self.metrics)

    def __getitem__(self, which: int | str) -> Metric:
        if isinstance(which, int):
            return self.metrics[which]
        _validate.one_of([each.name for each in self.metrics], figure=which)
        return next(each for each in self.metrics if each.name == which)

    def __str__(self) -> str:
        head = f"{'figure':<22}{'of':<24}{'value':<8}{'these records':<20}population"
        shown = [each for each in self.metrics if each.name not in LONG]
        left = len(self.metrics) - len(shown)
        note = [f"and {left} figures of longer tables ({', '.join(LONG)}): iterate to see them"] if left else []
        return "\n".join([head, *(_line(each) for each in shown), *note])


def _line(metric: Metric) -> str:
    noise, sampling = (f"{low:.3f} to {high:.3f}" for low, high in (metric.noise_interval, metric.sampling_interval))
    return f"{metric.name:<22}{metric.of:<24}{metric.value:<8.3f}{noise:<20}{sampling}"
