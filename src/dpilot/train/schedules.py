"""Step sizes over a run, as pure functions of how far it has come: nothing to store, nothing to resume."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from dpilot import _validate
from dpilot.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Schedule:
    """The step size times a factor: up from 0 over the share ``warmup`` of the steps, then flat or down a cosine.

    ::

        t < warmup      t / warmup
        after           final + (1 - final) (1 + cos(pi s)) / 2,   s = (t - warmup) / (1 - warmup);   flat: 1

    Example:
        >>> cosine = Schedule("cosine", warmup=0.5)
        >>> [round(cosine.factor(step, 4), 2) for step in range(4)]
        [0.5, 1.0, 1.0, 0.5]
        >>> Schedule().factor(7, 10)
        1.0
    """

    name: str = "constant"
    warmup: float = 0.0
    final: float = 0.0

    def __post_init__(self) -> None:
        _validate.one_of(("constant", "cosine"), 'Warm-up is Schedule("constant", warmup=0.1).', name=self.name)
        _validate.share(warmup=self.warmup)
        _validate.non_negative(final=self.final)

    def factor(self, step: int, steps: int) -> float:
        """What step number ``step`` (from 0) of ``steps`` multiplies the step size by."""
        rising = round(self.warmup * steps)
        if step < rising:
            return (step + 1) / rising
        if self.name == "constant":
            return 1.0
        passed = (step - rising) / max(steps - rising, 1)
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * passed)) / 2

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def schedule(chosen: str | Schedule) -> Schedule:
    """By name: "constant", "cosine", or "warm-up" (a tenth of the steps, then constant)."""
    if isinstance(chosen, Schedule):
        return chosen
    known = {"constant": Schedule(), "cosine": Schedule("cosine"), "warm-up": Schedule(warmup=0.1)}
    if chosen not in known:
        raise InvalidInput(f"schedule is {chosen!r}: expected one of {', '.join(known)}, or a Schedule.")
    return known[chosen]
