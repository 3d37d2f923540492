"""What a tuner maximises: one number of a noisy table of right and wrong predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from dpilot import _validate
from dpilot._arrays import Floats
from dpilot.errors import InvalidInput
from dpilot.metrics.interval import Proportion

OBJECTIVES: Final = ("accuracy", "macro", "worst_class", "worst_group")
RECALL: Final = "recall:"
"""Before the class whose recall is meant: by its name where classes have names, by its place in a table."""


def check_objective(name: str) -> str:
    """One of the objectives, or "recall:" and a class."""
    if isinstance(name, str) and name.startswith(RECALL) and name != RECALL:
        return name
    return _validate.one_of(OBJECTIVES, 'Or "recall:CLASS".', objective=name)


def place_objective(name: str, classes: Sequence[str]) -> str:
    """The objective with the place of its class among ``classes`` instead of the name.

    >>> place_objective("recall:yes", ("no", "yes")), place_objective("macro", ("no", "yes"))
    ('recall:1', 'macro')
    """
    if not check_objective(name).startswith(RECALL):
        return name
    of = name.removeprefix(RECALL)
    return f"{RECALL}{list(classes).index(_validate.one_of(tuple(classes), 'It is a class.', recall=of))}"


def objective(name: str, table: Floats) -> float:
    """The objective ``name`` of noisy counts, one row (wrong, right) a class, or a group for "worst_group".

    ::

        accuracy   right / all        macro   mean over rows of right / row        worst_...   least over rows
        recall:2   right / row, of the third row

    Guarantee:
        Post-processing: the denominators come from the same table.

    Edge cases:
        an empty row, by the noisy counts       1/2: nothing is known
        noise                                   the least of noisy rates is on average too low, most so with small rows

        a recall alone                          predicting the class always has 1: for choices that cannot do so

    Example:
        >>> table = np.array([[10.0, 90.0], [10.0, 10.0]])
        >>> [round(objective(name, table), 3) for name in OBJECTIVES]
        [0.833, 0.7, 0.5, 0.5]
        >>> objective("recall:0", table)
        0.9
    """
    check_objective(name)
    if table.ndim != 2 or table.shape[1] != 2 or not table.shape[0]:
        raise InvalidInput(f"table has shape {table.shape}: expected (classes or groups, 2), the counts wrong, right.")
    if name == "accuracy":
        wrong, right = table.sum(axis=0)
        return Proportion(float(right), float(wrong)).value
    rates = [Proportion(float(right), float(wrong)).value for wrong, right in table]
    if name.startswith(RECALL):
        places = {str(place): rate for place, rate in enumerate(rates)}
        return places[_validate.one_of(tuple(places), "It is a row of the table.", recall=name.removeprefix(RECALL))]
    return float(np.mean(rates)) if name == "macro" else min(rates)
