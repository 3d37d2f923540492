"""Checks speak in one voice: name, value, rule, remedy."""

from __future__ import annotations

import math
import re

import numpy as np
import pandas as pd
import pytest
import torch

from dpilot import _validate
from dpilot.errors import DpilotError, InvalidInput


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (_validate.number, [0, -1.5, 3], [math.nan, math.inf, "1", None, True]),
        (_validate.positive, [1e-300, 2], [0, -1, math.inf]),
        (_validate.non_negative, [0, 5], [-1e-9, math.nan]),
        (_validate.open_unit, [1e-9, 0.999], [0, 1]),
        (_validate.rate, [1e-9, 1], [0, 1.0000001]),
        (_validate.share, [0, 0.999], [1, -0.1]),
        (_validate.count, [1, 7, 3.0, np.int64(4)], [0, 2.5, math.nan, math.inf, False]),
    ],
)
def test_ranges(check: object, good: list[object], bad: list[object]) -> None:
    for value in good:
        assert check(thing=value) == value  # type: ignore[operator]
    for value in bad:
        with pytest.raises(InvalidInput, match=r"thing is .*: expected"):
            check(thing=value)  # type: ignore[operator]


def test_remedy_and_choices_are_told() -> None:
    with pytest.raises(InvalidInput, match=r"mode is 'c': expected one of 'a', 'b'\. Pick one\."):
        _validate.one_of(("a", "b"), "Pick one.", mode="c")
    assert _validate.one_of(("a", "b"), mode="a") == "a"


def test_invalid_input_is_a_value_error() -> None:
    assert issubclass(InvalidInput, ValueError)
    assert issubclass(InvalidInput, DpilotError)


RECORDS = {
    "array": np.full(3, 172.25),
    "one number": np.array(172.25),
    "frame": pd.DataFrame({"name": ["172.25"]}),
    "column": pd.Series([172.25]),
    "list": [172.25] * 100,
    "rows": [[172.25]],
    "dict": {"name": 172.25},
    "tensor": torch.full((3,), 172.25),
}


@pytest.mark.parametrize("what", RECORDS)
def test_records_in_the_wrong_place_are_not_printed(what: str) -> None:
    for check in (_validate.number, _validate.count, lambda thing: _validate.one_of(("a", "b"), thing=thing)):
        with pytest.raises(InvalidInput, match=rf"thing is a {type(RECORDS[what]).__name__}: expected") as caught:
            check(thing=RECORDS[what])
        assert "172" not in str(caught.value)


def test_settings_are_printed_and_long_ones_cut() -> None:
    for value in ("c", None, 2.5, True, np.float64(2.5), (1, 2), ["a", None]):
        with pytest.raises(InvalidInput, match=re.escape(f"thing is {value!r}: expected")):
            _validate.refuse("thing", value, "another")
    with pytest.raises(InvalidInput, match=r"thing is 'x{76}\.\.\.: expected") as caught:
        _validate.refuse("thing", "x" * 10_000, "another")
    assert len(str(caught.value)) < 120
