"""The total a data set may lose, and what has been lost: two frozen values."""

from __future__ import annotations

from dataclasses import dataclass

from dpilot import _validate


@dataclass(frozen=True, slots=True)
class Budget:
    """A total (epsilon, delta) for one data set; neighbours differ by one record, added or removed.

    >>> Budget(epsilon=1.0, delta=1e-5)
    Budget(epsilon=1.0, delta=1e-05)
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", _validate.positive("Typical totals are 0.1 to 10.", epsilon=self.epsilon))
        object.__setattr__(
            self, "delta", _validate.open_unit("Choose well below 1/size, such as 1e-5.", delta=self.delta)
        )


@dataclass(frozen=True, slots=True)
class Cost:
    """An amount spent or left, for display and sums. Zero is allowed."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", _validate.non_negative(epsilon=self.epsilon))
        object.__setattr__(self, "delta", _validate.non_negative(delta=self.delta))
