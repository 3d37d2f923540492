"""Scores: one number of a noisy table, how much of it is noise, and whether noise lets one rank trials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from dpilot._arrays import Floats
from dpilot.mechanism import Draws
from dpilot.metrics.objective import objective as value_of
from dpilot.tune.task import Task

__all__ = ["WORST", "TrialScore", "rankable", "score", "score_noise", "spread"]

WORST: Final = -math.inf


@dataclass(frozen=True, slots=True)
class TrialScore:
    """A released score and the standard deviation of its noise; a run that diverged scores worst, for certain."""

    value: float
    noise: float

    @property
    def diverged(self) -> bool:
        return self.value == WORST


def score(task: Task, model: Any, objective: str, *, noise_multiplier: float, receipt: Draws) -> TrialScore:
    """The objective of ``model`` on held-out records, from one noisy table.

    Guarantee:
        One Gaussian of ``noise_multiplier`` on a table in which every record is in one cell at most.

    Edge cases:
        a model with weights that are not finite    worst; nothing is drawn, and what was paid stays paid
    """
    table = task.table(model, objective, noise_multiplier=noise_multiplier, receipt=receipt)
    if table is None:
        return TrialScore(WORST, 0.0)
    return TrialScore(value_of(objective, table), _noise(objective, table, noise_multiplier))


def score_noise(cells: int, size: float, noise_multiplier: float) -> float:
    """About how much noise a score will have, from declared numbers alone: of a mean of ``cells`` equal cells.

    A rate of 1/2 in a cell of m records moves by (1/2) |(noise, -noise)| / m.

    >>> round(score_noise(1, 1000.0, 20.0), 4)
    0.0141
    """
    return noise_multiplier * math.sqrt(cells) / (math.sqrt(2) * max(size, 1.0))


def rankable(scores: Sequence[TrialScore]) -> bool:
    """Whether the scores differ by more than their noise would make equals differ, at 95 % confidence.

    ::

        max - min > quantile of the range of n standard normals * the largest noise

    Edge cases:
        diverged runs    differ from the others in what was released, so one of each is enough
        one run alone    nothing to rank

    Example:
        >>> rankable([TrialScore(0.5, 0.01), TrialScore(0.51, 0.01)])
        False
        >>> rankable([TrialScore(0.5, 0.01), TrialScore(0.6, 0.01)])
        True
    """
    finite = [each for each in scores if not each.diverged]
    if len(finite) < 2:
        return 0 < len(finite) < len(scores)
    values = [each.value for each in finite]
    return max(values) - min(values) > spread(scores)


def spread(scores: Sequence[TrialScore]) -> float:
    """How far apart noise alone puts the greatest and the least of equal scores, at 95 %; 0 for one alone."""
    finite = [each for each in scores if not each.diverged]
    return 0.0 if len(finite) < 2 else _range_quantile(len(finite)) * max(each.noise for each in finite)


def _noise(objective: str, table: Floats, noise_multiplier: float, draws: int = 400) -> float:
    """The spread of the objective when the same noise is added once more: a function of what was released."""
    generator = np.random.default_rng(0)  # post-processing: nothing is hidden by these draws
    again = table + noise_multiplier * generator.standard_normal((draws, *table.shape))
    return float(np.std([value_of(objective, each) for each in again]))


@lru_cache
def _range_quantile(count: int, confidence: float = 0.95) -> float:
    drawn = np.random.default_rng(0).standard_normal((20_000, count))
    return float(np.quantile(np.ptp(drawn, axis=1), confidence))
