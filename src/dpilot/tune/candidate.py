"""What a trial tries: a step size and a number of steps, and the box that both stay in.

>>> box = SearchBox(lr=(0.1, 10.0), steps=(10, 1000))
>>> box.least, box.most
(1.0, 10000.0)
>>> box.candidate(100.0, split="both")
Candidate(lr=1.0, steps=100)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from dpilot import _validate
from dpilot.errors import InvalidInput

__all__ = ["SPLITS", "Candidate", "SearchBox"]

SPLITS: Final = ("eta-first", "steps-first", "both")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A step size and a number of steps; ``r`` is how far a run can walk, lr * steps."""

    lr: float
    steps: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "lr", _validate.positive(lr=self.lr))
        object.__setattr__(self, "steps", _validate.count(steps=self.steps))

    @property
    def r(self) -> float:
        return self.lr * self.steps


@dataclass(frozen=True, slots=True)
class SearchBox:
    """The step sizes and numbers of steps that are allowed, both ends included; declared, never looked up in data.

    ``base`` is the number of steps that "eta-first" starts from and the step size that "steps-first" keeps; by default
    the geometric middle of each range.

    Edge cases:
        steps = (T, T)    only the step size varies: what Poisson sampling asks for
    """

    lr: tuple[float, float]
    steps: tuple[int, int]
    base: Candidate | None = None

    def __post_init__(self) -> None:
        low, high = (_validate.positive(lr=each) for each in self.lr)
        few, many = (_validate.count(steps=each) for each in self.steps)
        if low > high or few > many:
            raise InvalidInput(f"lr is {self.lr} and steps {self.steps}: expected (least, most) of each.")
        object.__setattr__(self, "lr", (low, high))
        object.__setattr__(self, "steps", (few, many))
        if self.base is None:
            middle = max(few, min(many, round(math.sqrt(few * many))))
            object.__setattr__(self, "base", Candidate(math.sqrt(low * high), middle))

    @classmethod
    def fixed(cls, lr: tuple[float, float], steps: int) -> SearchBox:
        """Step sizes in a range, at one number of steps."""
        return cls(lr, (steps, steps))

    @property
    def least(self) -> float:
        """The smallest r."""
        return self.lr[0] * self.steps[0]

    @property
    def most(self) -> float:
        """The largest r."""
        return self.lr[1] * self.steps[1]

    def inside(self, r: float) -> float:
        """The nearest r that the box allows."""
        return min(max(_validate.positive(r=r), self.least), self.most)

    def candidate(self, r: float, split: str = "eta-first") -> Candidate:
        """``r`` (clipped to the box) as a step size and a number of steps whose product it is.

        ::

            eta-first     steps stay at the base, the step size takes what r asks for     (Proposition 2.1 a)
            steps-first   the step size stays at the base, the steps take it              (Proposition 2.1 b)
            both          log lr and log steps go from end to end of the box together     (Proposition 2.1 c)

        Where the first variable meets its end, the other one takes the rest. Steps are whole, and the step size makes
        up for their rounding.

        Reference:
            Panda et al. 2024, Proposition 2.1; their code draws (lr, steps) at random until the product is near r.
        """
        _validate.one_of(SPLITS, split=split)
        assert self.base is not None
        wanted = self.inside(r)
        if split == "eta-first":
            count = wanted / self._within(wanted / self.base.steps, self.lr)
        elif split == "steps-first":
            count = wanted / self.base.lr
        else:
            whole = math.log(self.most / self.least)
            place = math.log(wanted / self.least) / whole if whole > 0 else 0.0
            count = self.steps[0] * (self.steps[1] / self.steps[0]) ** place
        return self._with_steps(wanted, count)

    def _with_steps(self, r: float, count: float) -> Candidate:
        """Near ``count`` steps, as many as the range of step sizes needs."""
        few = max(self.steps[0], math.ceil(r / self.lr[1] * (1 - 1e-12)))
        many = min(self.steps[1], math.floor(r / self.lr[0] * (1 + 1e-12)))
        steps = max(min(round(count), many), few)
        return Candidate(self._within(r / steps, self.lr), steps)

    @staticmethod
    def _within(value: float, ends: tuple[float, float]) -> float:
        return min(max(value, ends[0]), ends[1])


Box = SearchBox  # its name in 0.1.0
