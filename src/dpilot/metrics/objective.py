"""What a tuner maximises: one number of a noisy table of right and wrong predictions."""

from __future__ import annotations

from typing import Final

import numpy as np

from dpilot import _validate
from dpilot._arrays import Floats
from dpilot.errors import InvalidInput
from dpilot.metrics.interval import Proportion

OBJECTIVES: Final = ("accuracy", "macro", "worst_class", "worst_group")


def objective(name: str, table: Floats) -> float:
    """The objective ``name`` of noisy counts, one row (wrong, right) a class, or a group for "worst_group".

    ::

        accuracy   right / all        macro   mean over rows of right / row        worst_...   least over rows

    Guarantee:
        Post-processing: the denominators come from the same table.

    Edge cases:
        an empty row, by the noisy counts       1/2: nothing is known
        noise                                   the least of noisy rates is on average too low, most so with small rows

    Example:
        >>> table = np.array([[10.0, 90.0], [10.0, 10.0]])
        >>> [round(objective(name, table), 3) for name in OBJECTIVES]
        [0.833, 0.7, 0.5, 0.5]
    """
    _validate.one_of(OBJECTIVES, objective=name)
    if table.ndim != 2 or table.shape[1] != 2 or not table.shape[0]:
        raise InvalidInput(f"table has shape {table.shape}: expected (classes or groups, 2), the counts wrong, right.")
    if name == "accuracy":
        wrong, right = table.sum(axis=0)
        return Proportion(float(right), float(wrong)).value
    rates = [Proportion(float(right), float(wrong)).value for wrong, right in table]
    return float(np.mean(rates)) if name == "macro" else min(rates)
