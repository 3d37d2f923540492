"""The text that tells a rule from every other: a state with another text is refused."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from dpilot.clipping import Constant, Normalized
from dpilot.clipping.base import identity


@dataclass(frozen=True)
class Holding:
    """A rule of a user's own, which holds anything."""

    value: Any


LONG = np.ones(2000)
ODD = np.where(np.arange(2000) == 1000, 1e6, LONG)
PAIRS = {
    "the middle of a long array": (LONG, ODD),
    "the middle of a long tensor": (torch.tensor(LONG), torch.tensor(ODD)),
    "the middle of an array in a list": ([LONG], [ODD]),
    "the last bits of a tensor": (torch.tensor([0.1]), torch.tensor([0.1]).nextafter(torch.tensor([1.0]))),
    "halves": (torch.ones(3).bfloat16(), torch.zeros(3).bfloat16()),
    "objects": (np.array([None, "a"], dtype=object), np.array([None, "b"], dtype=object)),
    "shapes": (np.ones((2, 3)), np.ones((3, 2))),
    "types": (np.zeros(2, dtype=np.int64), np.zeros(2)),
    "large whole numbers": (2**53, 2**53 + 1),
    "whole numbers beyond all floats": (10**400, 10**400 + 1),
    "fractions": (Fraction(1, 3), Fraction(6004799503160661, 2**54)),
    "tuples and lists": ((1, 2), [1, 2]),
}


@pytest.mark.parametrize("what", PAIRS)
def test_different_values_have_different_texts(what: str) -> None:
    one, other = (identity(Holding(value)) for value in PAIRS[what])
    assert one != other


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (2**60, 2.0**60),
        (2**53 + 1, np.int64(2**53 + 1)),
        (float("nan"), np.float64("nan")),
        (LONG, LONG.copy()),
        (torch.tensor(2.0), torch.tensor(2.0)),
        (ODD[::2], ODD[::2].copy()),
        ((1, (2, 3)), (1.0, (2.0, 3.0))),
    ],
)
def test_equal_values_have_equal_texts(one: Any, other: Any) -> None:
    assert identity(Holding(one)) == identity(Holding(other))


def test_rules_of_one_name_are_told_apart_by_their_module() -> None:
    mine, theirs = (make_dataclass("Constant", ["threshold"]) for _ in range(2))
    mine.__module__, theirs.__module__ = "mine", "theirs"
    texts = [identity(kind(1.0)) for kind in (mine, theirs, Constant)]
    assert texts == ["mine.Constant(threshold=1.0)", "theirs.Constant(threshold=1.0)", "Constant(threshold=1.0)"]
    assert identity(Normalized(mine(1.0))) == "Normalized(rule=mine.Constant(threshold=1.0))"
