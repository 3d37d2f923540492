"""Amounts on disk are decimal strings, and every rounding goes against the user: spends up, what is left down.

Arithmetic names its context: an operator would round as the caller's thread happens to.

>>> times(3, to_decimal(0.1))
Decimal('0.3')
>>> above(Decimal("0.3")), below(Decimal("0.3"))
(0.3, 0.3)
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import ROUND_DOWN, ROUND_UP, Context, Decimal, InvalidOperation

from dpilot.errors import InternalError, LedgerError

ZERO = Decimal(0)
UP = Context(prec=50, rounding=ROUND_UP)
DOWN = Context(prec=50, rounding=ROUND_DOWN)
_STORED = Context(prec=20, rounding=ROUND_UP)
_SHORT = Context(prec=3, rounding=ROUND_DOWN)


def to_decimal(number: float) -> Decimal:
    """A declared number, exactly as it was typed: 0.1 is a tenth."""
    return Decimal(repr(float(number)))


def round_up(number: float) -> Decimal:
    """A number an accountant found, rounded up to twenty digits; infinity stays."""
    if math.isnan(number) or number < 0:
        raise InternalError(f"an accountant answered {number!r}: expected a number >= 0.")
    return _STORED.create_decimal(Decimal.from_float(number))


def truncate(number: Decimal) -> Decimal:
    """Three digits, rounded down: a readable delta, never above ``number``."""
    return number.normalize(_SHORT)


def total(numbers: Iterable[Decimal]) -> Decimal:
    """The sum, rounded up."""
    result = ZERO
    for number in numbers:
        result = UP.add(result, number)
    return result


def times(count: int, number: Decimal) -> Decimal:
    """``count`` times ``number``, rounded up."""
    return UP.multiply(Decimal(count), number)


def square_root(number: Decimal) -> Decimal:
    """Never below the true root, and above it by two units in the fiftieth digit at most."""
    root = UP.sqrt(number)  # decimal rounds roots to nearest, whatever the context says
    return root if DOWN.multiply(root, root) >= number else UP.next_plus(root)


def above(number: Decimal) -> float:
    """The float to show for a spend: as printed, it is not below ``number``."""
    shown = float(number)
    return shown if to_decimal(shown) >= number else math.nextafter(shown, math.inf)


def below(number: Decimal) -> float:
    """The float to show for what is left: as printed, it is not above ``number``, and not below zero."""
    shown = float(max(number, ZERO))
    return shown if to_decimal(shown) <= max(number, ZERO) else math.nextafter(shown, 0.0)


def chargeable(number: Decimal) -> float:
    """The largest float that costs at most ``number`` in a ledger, declared as it is or found by an accountant.

    >>> chargeable(Decimal("0.5")), chargeable(Decimal("0.1"))  # the float 0.1 is a little above a tenth
    (0.5, 0.09999999999999999)
    """
    shown = below(number)
    while shown > 0 and max(round_up(shown), to_decimal(shown)) > number:
        shown = math.nextafter(shown, 0.0)
    return shown


def show_up(number: float) -> str:
    """Six digits, rounded up, for people: a spend, or the total that is needed."""
    return _show(number, ROUND_UP)


def show_down(number: float) -> str:
    """Six digits, rounded down, for people: what is left.

    >>> show_down(0.9999999), show_up(0.9999999), show_up(3.0), show_down(1e-6)
    ('0.999999', '1', '3', '1e-06')
    """
    return _show(number, ROUND_DOWN)


def _show(number: float, rounding: str) -> str:
    return f"{float(Context(prec=6, rounding=rounding).plus(to_decimal(number))):g}"


def write(number: Decimal) -> str:
    """A finite decimal as a string."""
    if not number.is_finite():
        raise InternalError(f"{number} was about to be written to a ledger: expected a finite amount.")
    return str(number)


def read(text: object) -> Decimal:
    """The inverse of ``write``; refuses anything that is not a finite amount >= 0."""
    try:
        number = Decimal(text) if isinstance(text, str) else Decimal("NaN")
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite() or number < 0:
        raise LedgerError(f"an amount in the ledger is {text!r}: expected a decimal string >= 0. The file was altered.")
    return number
