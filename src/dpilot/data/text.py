"""How a value is written: one text for equal values, whatever type a file gave them.

>>> [text(value) for value in ("a", 1, 1.0, 0.5, True)]
['a', '1', '1', '0.5', 'True']
>>> text([1, 2]) is None
True
"""

from __future__ import annotations

import datetime
import difflib
import math
from collections.abc import Iterable
from decimal import Decimal
from numbers import Integral, Real

import numpy as np

from dpilot.data.values import WHOLE


def text(value: object) -> str | None:
    """The text of one cell or category; None for what is no single value, or cannot be written.

    Edge cases:
        A whole float is written as the whole number it equals: one missing value turns a file's integers into floats,
        and must not change what the others are.
        Nothing raises, whatever the value is.
    """
    try:
        return _text(value)
    except Exception:  # a cell that fails to be written must not say so
        return None


def _text(value: object) -> str | None:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, Real | Decimal):
        number = float(value)
        whole = math.isfinite(number) and number == int(number) and abs(number) < WHOLE
        return str(int(number)) if whole else repr(number)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return None


def suggest(name: object, choices: Iterable[str], otherwise: str = "") -> str:
    """The end of a message about a name that nobody knows: the known one it was meant to be, if any is near.

    >>> suggest("Age", ["age", "sex"]), suggest("zzz", ["age"], "; known are age.")
    (": did you mean 'age'?", '; known are age.')
    """
    known = {choice.casefold(): choice for choice in choices}
    near = difflib.get_close_matches(str(name).casefold(), list(known), 1)
    return f": did you mean {known[near[0]]!r}?" if near else otherwise or "."
