"""Where candidates come from: laws that no record decides, drawn independently for each trial.

>>> import numpy as np
>>> space = Space(lr=LogUniform(0.01, 1.0), steps=Choice((50, 100)))
>>> candidate = space.draw(np.random.default_rng(0))
>>> 0.01 <= candidate.lr <= 1.0, candidate.steps in (50, 100)
(True, True)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from numpy.random import Generator

from dpilot import _validate
from dpilot.errors import InvalidInput
from dpilot.tune.candidate import Candidate

__all__ = ["Always", "Choice", "LogUniform", "Sampler", "Space", "Uniform"]


class Sampler(Protocol):
    """The law of one number of a candidate."""

    def draw(self, generator: Generator) -> float: ...


@dataclass(frozen=True, slots=True)
class Always:
    """The same number every time."""

    value: float

    def draw(self, generator: Generator) -> float:
        del generator
        return self.value


@dataclass(frozen=True, slots=True)
class Uniform:
    """Any number between two ends, all alike."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _check_ends(self.low, self.high)

    def draw(self, generator: Generator) -> float:
        return float(generator.uniform(self.low, self.high))


@dataclass(frozen=True, slots=True)
class LogUniform:
    """Any number between two ends, all ratios alike: what step sizes are searched by."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _check_ends(self.low, self.high)

    def draw(self, generator: Generator) -> float:
        drawn = math.exp(generator.uniform(math.log(self.low), math.log(self.high)))
        return min(max(drawn, self.low), self.high)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few numbers, all alike."""

    values: Sequence[float]

    def __post_init__(self) -> None:
        if not self.values:
            raise InvalidInput("values is empty: expected at least one number to choose from.")
        object.__setattr__(self, "values", tuple(self.values))

    def draw(self, generator: Generator) -> float:
        return self.values[int(generator.integers(len(self.values)))]


@dataclass(frozen=True, slots=True)
class Space:
    """The law of a candidate: step size and number of steps, drawn apart from each other and from every record.

    Guarantee:
        Draws are independent and alike, with replacement, as private selection asks for.
    """

    lr: Sampler
    steps: Sampler

    def draw(self, generator: Generator) -> Candidate:
        return Candidate(self.lr.draw(generator), max(1, round(self.steps.draw(generator))))

    @property
    def step_counts(self) -> tuple[int, ...]:
        """Every number of steps that can be drawn, where there are finitely many."""
        match self.steps:
            case Always(value):
                return (round(value),)
            case Choice(values):
                return tuple(sorted({round(value) for value in values}))
        raise InvalidInput(
            f"steps is {self.steps!r}: expected Always or Choice where batches are sampled, as every number of steps "
            "has a price of its own."
        )


def _check_ends(low: float, high: float) -> None:
    if not _validate.positive(low=low) <= _validate.positive(high=high):
        raise InvalidInput(f"low is {low} and high is {high}: expected low <= high.")
