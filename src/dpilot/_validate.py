"""Checks on declared numbers, in one voice: value, rule, remedy.

Each check takes one keyword, whose name appears in the message, and returns the value as a plain number::

    >>> positive(noise_multiplier=1)
    1.0
    >>> positive(noise_multiplier=-1)
    Traceback (most recent call last):
    dpilot.errors.InvalidInput: noise_multiplier is -1.0: expected a finite number > 0.
"""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Collection, Iterable
from typing import Any, Final, NoReturn

from dpilot.errors import InvalidInput

_LONG: Final = 80  # characters of a value that a message shows
_LONGEST: Final = 500  # characters of a label
_MANY: Final = 8  # entries of a list that a message shows


def refuse(name: str, value: object, rule: str, remedy: str = "") -> NoReturn:
    """Raise InvalidInput in the house's one voice."""
    raise InvalidInput(f"{name} is {describe(value)}: expected {rule}." + (f" {remedy}" if remedy else ""))


def missing_extra(package: str, extra: str) -> InvalidInput:
    """What to raise where an optional package is not there."""
    return InvalidInput(f"{package} is not installed: expected it. pip install 'dpilot[{extra}]'.")


def describe(value: object) -> str:
    """A value as messages may show it: settings are shown, and of what could be records the type alone.

    >>> describe((1, "a")), describe({"a": 1}), describe(list(range(100)))
    ("(1, 'a')", 'a dict', 'a list')
    """
    plain = isinstance(value, (list, tuple)) and len(value) <= _MANY and all(map(_is_setting, value))
    if not (plain or _is_setting(value)):
        return f"a {type(value).__name__}"
    said = repr(value)
    return said if len(said) <= _LONG else f"{said[: _LONG - 3]}..."


def _is_setting(value: object) -> bool:
    return value is None or isinstance(value, str | bool | numbers.Number)


def number(remedy: str = "", **named: Any) -> float:
    """Any finite real number (bool is not one)."""
    name, value = _only(named)
    result = _real(name, value, "a finite number", remedy)
    if not math.isfinite(result):
        refuse(name, result, "a finite number", remedy)
    return result


def positive(remedy: str = "", **named: Any) -> float:
    """A finite number > 0."""
    return _finite(named, lambda v: v > 0, "a finite number > 0", remedy)


def non_negative(remedy: str = "", **named: Any) -> float:
    """A finite number >= 0."""
    return _finite(named, lambda v: v >= 0, "a finite number >= 0", remedy)


def open_unit(remedy: str = "", **named: Any) -> float:
    """A number in (0, 1)."""
    return _finite(named, lambda v: 0 < v < 1, "a number in (0, 1)", remedy)


def rate(remedy: str = "", **named: Any) -> float:
    """A sampling rate, in (0, 1]."""
    return _finite(named, lambda v: 0 < v <= 1, "a number in (0, 1]", remedy)


def share(remedy: str = "", **named: Any) -> float:
    """A share of something that must leave the rest usable, in [0, 1)."""
    return _finite(named, lambda v: 0 <= v < 1, "a number in [0, 1)", remedy)


def count(remedy: str = "", least: int = 1, greatest: int | None = None, **named: Any) -> int:
    """A whole number from ``least`` (to ``greatest``); 3.0 counts as 3, 3.5 and True do not count at all."""
    name, value = _only(named)
    rule = f"a whole number >= {least}" if greatest is None else f"a whole number from {least} to {greatest}"
    result = _real(name, value, rule, remedy)
    too_many = greatest is not None and result > greatest
    if not math.isfinite(result) or result != int(result) or result < least or too_many:
        refuse(name, value, rule, remedy)
    return int(value)


def one_of(choices: Collection[str], remedy: str = "", **named: Any) -> str:
    """One of a few names."""
    name, value = _only(named)
    if not isinstance(value, str) or value not in choices:
        refuse(name, value, "one of " + ", ".join(repr(c) for c in choices), remedy)
    return value


def line(remedy: str = "", **named: Any) -> str:
    """A short label, what people read in a ledger; control characters could rewrite a terminal."""
    name, value = _only(named)
    if not isinstance(value, str) or not value.strip() or len(value) > _LONGEST or not value.isprintable():
        refuse(name, value, f"one line of 1 to {_LONGEST} printable characters", remedy)
    return value


def suggest(name: object, choices: Iterable[str], otherwise: str = "") -> str:
    """The end of a message about an unknown name: the closest known one, if any is near.

    >>> suggest("Age", ["age", "sex"]), suggest("zzz", ["age"], "; known are age.")
    (": did you mean 'age'?", '; known are age.')
    """
    known = {choice.casefold(): choice for choice in choices}
    near = difflib.get_close_matches(str(name).casefold(), list(known), 1)
    return f": did you mean {known[near[0]]!r}?" if near else otherwise or "."


def _only(named: dict[str, Any]) -> tuple[str, Any]:
    ((name, value),) = named.items()
    return name, value


def _real(name: str, value: Any, rule: str, remedy: str) -> float:
    if type(value) is not float and (isinstance(value, bool) or not isinstance(value, numbers.Real)):  # which are slow
        refuse(name, value, rule, remedy)
    return float(value)


def _finite(named: dict[str, Any], holds: Any, rule: str, remedy: str) -> float:
    name, value = _only(named)
    result = _real(name, value, rule, remedy)
    if not (math.isfinite(result) and holds(result)):
        refuse(name, result, rule, remedy)
    return result
