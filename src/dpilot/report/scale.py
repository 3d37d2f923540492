"""An axis: where a value lies between its ends, and the round numbers along it. Safe for any finite input."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from dpilot.report.words import is_finite, number

_LARGEST: Final = 1.7e308


class Tick(NamedTuple):
    """A round number on an axis, and its place in percent of the axis."""

    place: float
    label: str


@dataclass(frozen=True, slots=True)
class Scale:
    """A straight or logarithmic axis from ``low`` to ``high``, low < high.

    Example:
        >>> axis = Scale.over([0.0, 1.0])
        >>> round(axis.place(0.5)), [tick.label for tick in axis.ticks()]
        (50, ['0', '0.2', '0.4', '0.6', '0.8', '1'])
        >>> [tick.label for tick in Scale.over([0.001, 10.0]).ticks()]
        ['0.001', '0.01', '0.1', '1', '10']
    """

    low: float
    high: float
    logarithmic: bool = False

    @classmethod
    def over(cls, values: Iterable[object]) -> Scale:
        """The axis that holds all finite values, with a little room; one or no value gets room to stand in."""
        finite = [float(value) for value in values if is_finite(value)]  # type: ignore[arg-type]
        if not finite:
            return cls(0.0, 1.0)
        low, high = min(finite), max(finite)
        if low > 0 and high / low >= 1_000:  # equal steps would hide the small values
            return cls(low / 1.1 or low, min(high * 1.1, _LARGEST), logarithmic=True)
        room = (high / 2 - low / 2) / 12 or abs(high) / 10 or 1.0
        return cls(max(low - room, -_LARGEST), min(high + room, _LARGEST))

    def place(self, value: float) -> float:
        """Where the value lies, in percent; what lies outside is put at the end."""
        if self.logarithmic:
            low, high, at = (math.log(max(each, 5e-324)) for each in (self.low, self.high, value))
        else:
            low, high, at = self.low / 2, self.high / 2, value / 2
        span = high - low
        share = (at - low) / span if span > 0 else 0.5
        return 100 * min(max(share, 0.0), 1.0)

    def ticks(self, say: Callable[[object], str] = number) -> tuple[Tick, ...]:
        """Up to seven round numbers, or the two ends where no round number can be had."""
        values = self._decades() if self.logarithmic else self._steps()
        return tuple(Tick(self.place(value), say(float(value))) for value in values)

    def _steps(self) -> list[float]:
        span = self.high - self.low
        if not 1e-290 < span < 1e290 or span < 1e-9 * max(abs(self.low), abs(self.high)):
            return [self.low, self.high]
        rough = span / 6
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(each * power for each in (1, 2, 5, 10) if each * power >= rough * (1 - 1e-9))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [_clean(index * step, step) for index in range(first, last + 1)] or [self.low, self.high]

    def _decades(self) -> list[float]:
        first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
        every = max(1, math.ceil((last - first + 1) / 7))
        return [10.0**power for power in range(first, last + 1, every)] or [self.low, self.high]


def _clean(value: float, step: float) -> float:
    """Without the float dust of index times step."""
    return round(value, max(0, 1 - math.floor(math.log10(step)))) if step < 1 else value
