"""The total a data set may lose, and what has been lost: two frozen values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from dpilot import _validate

MOST_DELTA: Final = 1e-5


@dataclass(frozen=True, slots=True)
class Budget:
    """A total (epsilon, delta) for one data set; neighbours differ by one record, added or removed.

    ``allow_large_delta`` lets delta be 1/size or more, which every entry that knows the size refuses otherwise.

    >>> Budget(epsilon=1.0, delta=1e-5)
    Budget(epsilon=1.0, delta=1e-05)
    """

    epsilon: float
    delta: float
    allow_large_delta: bool = field(default=False, kw_only=True, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", _validate.positive("Typical totals are 0.1 to 10.", epsilon=self.epsilon))
        object.__setattr__(
            self, "delta", _validate.open_unit("Choose well below 1/size, such as 1e-5.", delta=self.delta)
        )

    @classmethod
    def of_size(
        cls, epsilon: float, delta: float | None, size: float | None, *, allow_large_delta: bool = False
    ) -> Budget:
        """The budget for ``size`` records (None: to be bought); without a delta, ``default_delta`` of the size.

        >>> Budget.of_size(1.0, None, 200_000), Budget.of_size(1.0, None, None)
        (Budget(epsilon=1.0, delta=5e-07), Budget(epsilon=1.0, delta=1e-06))
        """
        chosen = default_delta("private" if size is None else size) if delta is None else delta
        budget = cls(epsilon, chosen, allow_large_delta=allow_large_delta)
        budget.check_size(size)
        return budget

    def as_dict(self) -> dict[str, float]:
        """epsilon and delta, for JSON."""
        return {"epsilon": self.epsilon, "delta": self.delta}

    def check_size(self, size: float | None) -> str | None:
        """``check_delta`` of ``size`` records; nothing is known where that is None."""
        return None if size is None else check_delta(self.delta, size, allow_large=self.allow_large_delta)


def check_delta(delta: float, size: float, *, allow_large: bool = False) -> str | None:
    """Refuse a delta that a data set of ``size`` makes meaningless; return a note where it is merely large.

    delta >= 1/size admits publishing one random record in full, so it is refused unless allowed in so many words.

    >>> check_delta(1e-5, 50_000)
    'delta 1e-05 is above 1/(10 size) = 2e-06: large for 50,000 records.'
    """
    delta = _validate.open_unit(delta=delta)
    size = _validate.positive("Declare the number of records.", size=size)
    if delta * size >= 1 and not allow_large:
        _validate.refuse(
            "delta",
            delta,
            f"a number below 1/size = {1 / size:.3g}",
            f"Publishing one random record would satisfy it; use {default_delta(size):.3g}, or allow it explicitly "
            "(allow_large_delta=True, also of a Budget).",
        )
    if delta * size * 10 > 1 + 1e-9:
        return f"delta {delta:g} is above 1/(10 size) = {1 / (10 * size):.3g}: large for {size:,.0f} records."
    return None


def default_delta(size: float | str | None = None) -> float:
    """min(1e-5, 1/(10 size)); of a "private" size, which is bought once delta is fixed, 1e-6.

    >>> default_delta(50_000), default_delta("private"), default_delta()
    (2e-06, 1e-06, 1e-05)
    """
    if isinstance(size, str):
        _validate.one_of(("private",), "Or the number of records.", size=size)
        return 1e-6  # below 1/size for fewer than a million records, whatever the number is
    return MOST_DELTA if size is None else min(MOST_DELTA, 1 / (10 * _validate.positive(size=size)))


@dataclass(frozen=True, slots=True)
class Cost:
    """An amount spent or left, for display and sums. Zero is allowed."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", _validate.non_negative(epsilon=self.epsilon))
        object.__setattr__(self, "delta", _validate.non_negative(delta=self.delta))
