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


def check_delta(delta: float, size: int, *, allow_large: bool = False) -> str | None:
    """Refuse a delta that a data set of ``size`` makes meaningless; return a note where it is merely large.

    delta >= 1/size admits publishing one random record in full, so it is refused unless allowed in so many words.

    >>> check_delta(1e-5, 50_000)
    'delta 1e-05 is above 1/(10 size) = 2e-06: large for 50,000 records.'
    """
    delta = _validate.open_unit(delta=delta)
    size = _validate.count("Declare the number of records.", size=size)
    if delta * size >= 1 and not allow_large:
        _validate.refuse(
            "delta",
            delta,
            f"a number below 1/size = {1 / size:.3g}",
            f"Publishing one random record would satisfy it; use {default_delta(size):.3g}, or allow it explicitly "
            "(allow_large_delta).",
        )
    if delta * size * 10 > 1 + 1e-9:
        return f"delta {delta:g} is above 1/(10 size) = {1 / (10 * size):.3g}: large for {size:,} records."
    return None


def default_delta(size: int | None = None) -> float:
    """min(1e-5, 1/(10 size)).

    >>> default_delta(50_000), default_delta()
    (2e-06, 1e-05)
    """
    return 1e-5 if size is None else min(1e-5, 1 / (10 * _validate.count(size=size)))


@dataclass(frozen=True, slots=True)
class Cost:
    """An amount spent or left, for display and sums. Zero is allowed."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", _validate.non_negative(epsilon=self.epsilon))
        object.__setattr__(self, "delta", _validate.non_negative(delta=self.delta))
