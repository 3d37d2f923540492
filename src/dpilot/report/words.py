"""Numbers and names as people read them. Bounds round against the reader's comfort: up, where more is worse."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from typing import Any, Final

_SUPERSCRIPT: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_SCIENTIFIC: Final = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)e([-+]?\d+)\b")
_JOINERS: Final = "\u200c\u200d"  # without them some scripts and emoji fall apart; they hide nothing
_ACRONYMS: Final = {"auc": "AUC", "rmse": "RMSE", "mae": "MAE", "lr": "Learning rate", "id": "ID"}


def number(value: object, digits: int = 4, rounding: str = ROUND_HALF_EVEN) -> str:
    """Any value in a few characters: whole numbers with commas, others to ``digits`` significant digits.

    >>> number(32561), number(0.8514321), number(3.0712e-6), number(1.5e20), number(True), number(None)
    ('32,561', '0.8514', '3.071 × 10⁻⁶', '1.5 × 10²⁰', 'yes', 'none')
    """
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, int) and abs(value) < 10**15:
        return f"{value:,}".replace("-", "\N{MINUS SIGN}")
    if not isinstance(value, int | float):
        return str(value)
    if not is_finite(value):
        return "not a number"
    return _decimal(Context(prec=digits, rounding=rounding).create_decimal(repr(float(value))))


def upward(value: float, digits: int = 4) -> str:
    """``number``, never below the value as it is written: for what is lost.

    >>> upward(0.99999), upward(1.00001), upward(0.44, 3)
    ('1', '1.001', '0.44')
    """
    return number(float(value), digits, ROUND_CEILING)


def ceiling(value: float, digits: int = 4) -> float:
    """The number that ``upward`` writes.

    >>> ceiling(2.99871)
    2.999
    """
    return float(Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(float(value))))


def percent(value: object, rounding: str = ROUND_HALF_EVEN) -> str:
    """A share of one as a percentage, to one decimal; to more where that would say 0 or 100.

    >>> percent(0.8514), percent(0.0027, ROUND_CEILING), percent(0.99995), percent(1.0), percent(-0.031)
    ('85.1 %', '0.27 %', '99.995 %', '100 %', '−3.1 %')
    """
    if not is_finite(value):
        return number(value)
    exact = Decimal(repr(float(value))) * 100  # type: ignore[arg-type]
    shown = exact.quantize(Decimal("0.1"), rounding=rounding) if abs(exact) < 10**6 else exact
    if exact != shown and (abs(exact) < 1 or 99 < exact < 100):
        near, digits = (abs(exact), 2) if exact < 1 else (100 - exact, 1)
        places = Context(prec=digits, rounding=ROUND_FLOOR).create_decimal(near).as_tuple().exponent
        shown = exact.quantize(Decimal(1).scaleb(max(int(places), -9)), rounding=rounding)
    return f"{_decimal(shown)} %"


def points(value: object) -> str:
    """A difference of shares.

    >>> points(0.099), points(-0.0312)
    ('9.9 points', '−3.1 points')
    """
    return f"{percent(value).removesuffix(' %')} points" if is_finite(value) else number(value)


def at_most(share: float) -> str:
    """A percentage that is never below ``share``."""
    return percent(share, ROUND_CEILING)


def at_least(share: float) -> str:
    """A percentage that is never above ``share``."""
    return percent(share, ROUND_FLOOR)


def one_in(chance: float) -> str:
    """A small chance as "1 in so many", never made smaller.

    >>> one_in(3e-6), one_in(0.5)
    ('1 in 333,333', '1 in 2')
    """
    if not 0 < chance <= 1 or chance < 1e-300:
        return number(chance)
    return f"1 in {number(math.floor(Decimal(1) / Decimal(repr(chance))))}"


def between(low: object, high: object, say: Callable[[object], str]) -> str:
    """Two ends of an interval, their unit once.

    >>> between(0.843, 0.859, percent), between(-1.5, 2.0, number)
    ('84.3 to 85.9 %', '−1.5 to 2')
    """
    return f"{say(low).removesuffix(' %').removesuffix(' points')} to {say(high)}"


def listed(names: Sequence[str], word: str = "and") -> str:
    """Names in a row.

    >>> listed(["a", "b", "c"]), listed(["a"])
    ('a, b and c', 'a')
    """
    return f"{', '.join(names[:-1])} {word} {names[-1]}" if len(names) > 1 else "".join(names)


def powers(text: str) -> str:
    """A sentence whose numbers are written as on the rest of a page.

    >>> powers("min(1e-5, 2.05e-06), not size1e5")
    'min(1 × 10⁻⁵, 2.05 × 10⁻⁶), not size1e5'
    """
    return _SCIENTIFIC.sub(lambda found: f"{found[1]} × 10{str(int(found[2])).translate(_SUPERSCRIPT)}", text)


def label(key: object) -> str:
    """A field's name as the start of a line.

    >>> label("noise_multiplier"), label("lr"), label("worst-class")
    ('Noise multiplier', 'Learning rate', 'Worst class')
    """
    text = str(key)
    if text.lower() in _ACRONYMS:
        return _ACRONYMS[text.lower()]
    spaced = text.replace("_", " ").replace("-", " ").strip()
    return spaced[:1].upper() + spaced[1:]


def visible_name(text: str) -> str:
    """A name that can be seen: an empty one becomes "(empty)".

    >>> visible_name("train"), visible_name(" ")
    ('train', '(empty)')
    """
    return text if printable(text).strip() else "(empty)"


def printable(text: str) -> str:
    """The text without what could move or hide its neighbours: control and direction characters become a mark.

    >>> printable("a\\u202eb")
    'a�b'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _JOINERS else " " if c.isspace() else "\ufffd" for c in text)


def is_finite(value: Any) -> bool:
    """Whether this is a number that can be drawn."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _decimal(value: Decimal) -> str:
    """Plain digits for ordinary sizes, powers of ten for the rest; a minus from which no line breaks its number."""
    if value == 0:
        return "0"
    if value < 0:
        return f"\N{MINUS SIGN}{_decimal(-value)}"
    if -4 <= value.adjusted() < 9:
        plain = f"{value:,f}"
        return plain.rstrip("0").rstrip(".") if "." in plain else plain
    lead = f"{value.scaleb(-value.adjusted()):f}"
    lead = lead.rstrip("0").rstrip(".") if "." in lead else lead
    return f"{lead} × 10{str(value.adjusted()).translate(_SUPERSCRIPT)}"
