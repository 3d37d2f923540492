"""Numbers in words: bounds never look better than they are."""

from __future__ import annotations

import math
import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpilot.report import words

_PLAIN = str.maketrans("−⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "--0123456789")
finite = st.floats(allow_nan=False, allow_infinity=False)


def value_of(text: str) -> Decimal:
    """The number that a text says."""
    return Decimal(text.replace(",", "").replace(" × 10", "e").translate(_PLAIN))


@given(finite)
def test_a_number_reads_back_to_four_digits(value: float) -> None:
    exact = Decimal(repr(value))
    assert abs(value_of(words.number(value)) - exact) <= abs(exact) * Decimal("5.1e-4")


@given(st.floats(0, 1e300))
def test_what_is_lost_is_never_shown_smaller(value: float) -> None:
    shown = value_of(words.upward(value))
    assert Decimal(repr(value)) <= shown <= Decimal(repr(value)) * Decimal("1.001")


@given(st.floats(0, 1))
def test_percentages_of_bounds_are_rounded_outwards(share: float) -> None:
    low, high = (value_of(say(share).removesuffix(" %")) for say in (words.at_least, words.at_most))
    assert low <= Decimal(repr(share)) * 100 <= high
    assert high - low <= Decimal("0.1")


@pytest.mark.parametrize("share", [0.00001, 0.004, 0.9951, 0.999999])
def test_a_percentage_says_0_or_100_only_of_these(share: float) -> None:
    assert words.percent(share) not in ("0 %", "100 %")


@given(st.floats(1e-12, 1))
def test_one_in_so_many_is_never_rarer_than_the_chance(chance: float) -> None:
    count = int(words.one_in(chance).removeprefix("1 in ").replace(",", ""))
    assert (
        Decimal(count) * Decimal(repr(chance)) <= 1 < Decimal(count + 1) * Decimal(repr(chance)) * Decimal("1.000001")
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400])
def test_what_cannot_be_drawn_is_said_so(value: float) -> None:
    assert not words.is_finite(value)
    assert words.number(value) == "not a number"


@given(st.text())
def test_no_character_may_hide_or_move_others(text: str) -> None:
    shown = words.printable(text)
    assert not re.search("[\u0000-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", shown)
    assert len(shown) == len(text)
